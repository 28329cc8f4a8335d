"""Run every command shown in the README and write its output under it.

python docs/refresh.py            rewrites README.md and docs/compare.png
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```console\n\$ (?P<command>[^\n]+)\n(?P<output>.*?)```", re.DOTALL)


def output_of(command: str) -> str:
    """What a command of the README prints, 80 columns wide."""
    words = shlex.split(command)
    assert words[0] == "overhand"
    result = subprocess.run(
        [sys.executable, "-m", "overhand", *words[1:]],
        capture_output=True, text=True, check=True, cwd=ROOT,
        env={"COLUMNS": "80", "PATH": "", "NO_COLOR": "1"},
    )  # fmt: skip
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    return "\n".join(line for line in lines if line) + "\n"


def refreshed(text: str) -> str:
    """The text with all outputs as they are now."""
    return BLOCK.sub(lambda m: f"```console\n$ {m['command']}\n{output_of(m['command'])}```", text)


def main() -> None:
    readme = ROOT / "README.md"
    readme.write_text(refreshed(readme.read_text(encoding="utf-8")), encoding="utf-8")
    output_of("overhand compare --horizon 1000000 --runs 40 --plot docs/compare.png")


if __name__ == "__main__":
    main()
