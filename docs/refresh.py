"""Run every command shown in the README and in the pages below, and write its output under it.

python docs/refresh.py            rewrites the pages and all figures: about eight minutes
python docs/refresh.py --start    the README and the quickstart alone: about two minutes
python docs/refresh.py --slow     the bandits' page and figure: about half an hour

Commands run in a new directory with the files that the quickstart's session writes there.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
import tempfile
from contextlib import chdir
from pathlib import Path

import commands

ROOT = Path(__file__).parent.parent
QUICKSTART = ROOT / "docs" / "quickstart.md"
START = (ROOT / "README.md", QUICKSTART)
PAGES = (
    *START,
    ROOT / "docs" / "choosing.md",
    ROOT / "docs" / "values.md",
    ROOT / "docs" / "shares.md",
    ROOT / "docs" / "pairs.md",
    ROOT / "docs" / "noise.md",
    ROOT / "docs" / "streams.md",
    ROOT / "docs" / "questions.md",
    ROOT / "docs" / "time.md",
    ROOT / "docs" / "hindsight.md",
)
SLOW_PAGES = (ROOT / "docs" / "audit.md", ROOT / "docs" / "bandits.md")
DRAWN = {
    "basket_values": "values.md",
    "emoji_votes": "values.md",
    "sensor_vectors": "values.md",
    "regression": "values.md",
    "covid_positives": "streams.md",
    "police_stops": "streams.md",
    "late_flights": "streams.md",
    "hindsight": "hindsight.md",
}
"""The examples that draw a figure, and the page that shows it."""

BLOCK = re.compile(r"```console\n\$ (?P<command>[^\n]+)\n(?P<output>.*?)```", re.DOTALL)


def output_of(command: str, directory: Path = ROOT) -> str:
    """What a command of a page prints, 80 columns wide. A script is named from the root."""
    program, *arguments = shlex.split(command)
    assert program in ("overhand", "python")
    module = ["-m", "overhand"] if program == "overhand" else []
    environment = {"COLUMNS": "80", "PATH": "", "NO_COLOR": "1", "PYTHONUTF8": "1"}
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    result = subprocess.run(
        [sys.executable, *module, *arguments],
        capture_output=True, encoding="utf-8", check=True, env=environment,
        cwd=directory if program == "overhand" else ROOT,
    )  # fmt: skip
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    return "\n".join(line for line in lines if line) + "\n"


def write_files(directory: Path) -> None:
    """Run the session of the quickstart, which writes the file that the commands read."""
    with chdir(directory):
        failed, _ = doctest.testfile(str(QUICKSTART), module_relative=False)
    assert not failed


def refresh(pages: tuple[Path, ...]) -> None:
    """Write every output into its page as soon as it is there."""
    with tempfile.TemporaryDirectory() as directory:
        write_files(Path(directory))
        for page in pages:
            for shown in BLOCK.finditer(page.read_text(encoding="utf-8")):
                command = shown["command"]
                printed = output_of(command, Path(directory))
                block = f"```console\n$ {command}\n{printed}```"
                text = page.read_text(encoding="utf-8")
                page.write_text(text.replace(shown[0], block), encoding="utf-8")
                print(command, flush=True)


def main() -> None:
    commands.PAGE.write_text(commands.page(), encoding="utf-8")
    if sys.argv[1:] == ["--start"]:
        refresh(START)
        return
    if sys.argv[1:] == ["--slow"]:
        refresh(SLOW_PAGES)
        output_of("overhand lab bandit --plot docs/regret.png")
        return
    refresh(PAGES)
    for name in DRAWN:
        output_of(f"python examples/{name}.py docs/{name}.png")
    output_of("python docs/picture.py docs/shares.png")
    output_of("python docs/choosing.py docs/choosing.png")
    output_of("python docs/frontier.py docs/frontier.png")
    output_of(
        "overhand lab compare --horizon 1000000 --shufflers 4 --mechanism best --runs 40 "
        "--plot docs/compare.png"
    )


if __name__ == "__main__":
    main()
