"""Write docs/cli.md from the help of every command: python docs/commands.py"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from overhand.cli import COMMANDS, Entry, load_command

PAGE = Path(__file__).parent / "cli.md"
WIDTH = 96
INTRODUCTION = """# The command line

Every command with every option, as `overhand COMMAND --help` prints it. Write `1e6` or `1000000`
for a number of users. A command whose extra is missing says what to install (`docs/install.md`), a
bad argument ends with one line on stderr and exit code 2, and `--json`, where a command has it,
prints one JSON object and nothing else.

`docs/quickstart.md` shows the most useful commands at work. `python docs/commands.py` writes this
page.
"""
GROUPS = {
    "Use": "On your own file, and everything at once.",
    "Plan": "How accurate it will be, and what it costs, before anybody has reported.",
    "Deploy": "The services of two operators, and their clients (`docs/deploy.md`).",
    "Laboratory": "Experiments: what plans do on streams, and whether the claims hold.",
}


def page() -> str:
    """The page, in Markdown."""
    text = INTRODUCTION
    for panel, entries in groupby(COMMANDS.items(), key=lambda entry: entry[1].panel):
        text += f"\n## {panel}\n\n{GROUPS[panel]}\n" + "".join(section(*one) for one in entries)
    return text


def section(name: str, entry: Entry) -> str:
    return f"\n### overhand {name}\n\n{entry.summary}\n\n```text\n{help_of(name)}\n```\n"


def help_of(name: str) -> str:
    """The help of a command as plain text, of one width wherever it is written."""
    command = load_command(name)
    command.rich_markup_mode = None
    context = command.make_context(
        f"overhand {name}", [], resilient_parsing=True,
        terminal_width=WIDTH, max_content_width=WIDTH,
    )  # fmt: skip
    return "\n".join(line.rstrip() for line in command.get_help(context).splitlines())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
