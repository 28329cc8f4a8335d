"""Sessions of pages run, commands print what pages say, and every example works."""

from __future__ import annotations

import doctest
import importlib
import math
import pkgutil
import re
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand import errors
from overhand.accounting import Level, gaussian_variance, least_scale
from overhand.cli import COMMANDS
from overhand.lab.baselines import SquareRoot, local_counter
from overhand.noise import CoinNoise, Noise
from overhand.randomness import HALF, BinaryFraction
from overhand.values import BITS, FORMS, values_of
from support.cli_runner import overhand

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
sys.path.insert(0, str(ROOT / "docs"))

import choosing  # noqa: E402
import commands  # noqa: E402
from refresh import BLOCK, DRAWN, PAGES, QUICKSTART, SLOW_PAGES, START, write_files  # noqa: E402

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
VALUES = (ROOT / "docs" / "values.md").read_text(encoding="utf-8")
SHOWN = {
    block["command"]: block["output"]
    for page in PAGES
    for block in BLOCK.finditer(page.read_text(encoding="utf-8"))
}
# A seed gives the same sample only with the same NumPy: 2.5 draws other binomials than 2.4.
SAME_SAMPLES = np.lib.NumpyVersion(np.__version__) < "2.5.0"
PLANS = [command for command in SHOWN if command.startswith("overhand plan")]


def test_the_readme_starts_with_the_two_commands() -> None:
    assert re.findall(r"^    (make \w+)", README, re.MULTILINE) == ["make demo", "make test"]


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 180


def test_everything_introduces_itself_by_the_same_line() -> None:
    line = "Private running statistics without a trusted server."
    assert README.splitlines()[2] == oh.__doc__ == line
    page = "src/overhand/deploy/server/dashboard/index.html"
    for file in ("pyproject.toml", "CITATION.cff", "src/overhand/cli/__init__.py", page):
        assert line in (ROOT / file).read_text(encoding="utf-8"), file


def test_every_page_that_the_readme_names_can_be_clicked() -> None:
    """Where packages and repositories are read, a path in backquotes is not a link."""
    links = re.findall(r"\]\(((?!https?:)[^)]+)\)", README)
    assert not [link for link in links if not (ROOT / link).exists()]
    assert not re.findall(r"(?<!\[)`docs/[\w-]+\.md`", README)


def test_the_readmes_table_is_computed() -> None:
    """Errors and messages per user, of a million users' bits."""
    users, privacy = 10**6, oh.Privacy(1.0, 1e-6)
    ways = ((1, "best"), (4, "best"), (1, "pairs"), (1, "services"))
    plans = [oh.Plan.best(users, k, privacy, mechanism=kind) for k, kind in ways]
    published, local = oh.Plan.published(users, 4, privacy), local_counter(users, privacy, BITS)
    models: tuple[Any, ...] = (local, published, *plans, SquareRoot(users, privacy))
    table = re.findall(r"^\|[^|]+\| \**([\d,]+)\** \| \**([\d,]+)\** \|$", README, re.MULTILINE)
    assert table == [(f"{m.rms_error:,.0f}", f"{m.messages_per_user:,}") for m in models]


def test_the_readmes_figure_is_that_of_the_page_of_streams() -> None:
    """What it says of real tests is in a table that an example prints."""
    lines = SHOWN["python examples/covid_positives.py"].splitlines()
    local, ours, trusted = (
        round(float(re.findall(r" (\d+\.\d) ", line)[0]))
        for name in ("local", "3 shufflers", "trusted server")
        for line in lines
        if line.startswith(name)
    )
    said = " ".join(README.split())
    assert f"Its rms error is {ours}. With local privacy it would be {local};" in said
    assert f"trusted with every result has {trusted} " in said


def test_every_test_that_the_pages_name_exists() -> None:
    pages = (ROOT / "docs").glob("*.md")
    named = {name for page in pages for name in re.findall(r"`(test_\w+)`", page.read_text())}
    tests = "".join(path.read_text() for path in (ROOT / "tests").glob("*/test_*.py"))
    assert len(named) > 40
    assert not {name for name in named if f"def {name}(" not in tests}


def test_every_test_that_is_named_with_its_file_is_in_it() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {
        pair
        for page in pages
        for pair in re.findall(r"`(tests/\w+/\w+\.py)::(\w+)`", page.read_text())
    }
    assert len(named) > 10
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file}::{test}"


def test_the_readmes_session_runs() -> None:
    results = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    assert results.attempted >= 8
    assert results.failed == 0


def test_the_sessions_of_the_page_of_values_run() -> None:
    page = str(ROOT / "docs" / "values.md")
    results = doctest.testfile(page, module_relative=False, optionflags=doctest.ELLIPSIS)
    assert results.attempted >= 15
    assert results.failed == 0


def test_the_session_of_the_bandits_page_runs() -> None:
    results = doctest.testfile(str(ROOT / "docs" / "bandits.md"), module_relative=False)
    assert results.attempted >= 5
    assert results.failed == 0


def test_every_command_of_a_slow_page_has_been_run() -> None:
    for page in SLOW_PAGES:
        for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
            assert block["output"], block["command"]


@pytest.mark.slow
@pytest.mark.parametrize("command", PLANS)
def test_plans_are_what_the_command_prints(command: str) -> None:
    result = overhand(*shlex.split(command)[1:])
    assert result.returncode == 0, result.stderr
    assert_same_words(result.stdout.split()[:-1], SHOWN[command].split()[:-1])  # but the digest


def assert_same_words(printed: list[str], shown: list[str], rel: float = 2e-3) -> None:
    """Word by word, but numbers may differ by rounding, or by `rel` times their size."""
    assert len(printed) == len(shown)
    for now, then in zip(printed, shown, strict=True):
        assert now == then or as_number(now) == pytest.approx(as_number(then), rel=rel)


def as_number(text: str) -> float:
    return float(text.strip("(),;%").replace(",", ""))


@pytest.mark.filterwarnings("ignore::overhand.errors.WeakDelta")
@pytest.mark.slow
@pytest.mark.parametrize("table", choosing.TABLES)
def test_a_table_of_choosing_has_the_rows_that_plans_have(table: str) -> None:
    """The heading and the first row; the others differ by a number that is handed in."""
    shown = SHOWN[f"python docs/choosing.py {table}"].splitlines()
    _, _, cases = choosing.TABLES[table]
    assert len(shown) == 1 + len(cases)
    for line, row in zip(shown[:2], choosing.rows_of(table), strict=False):
        assert_same_words(" ".join(row).split(), line.split())


def test_pages_have_plans_to_check() -> None:
    for page in PAGES:
        if page.stem not in ("README", "hindsight"):  # which are of plans that other pages show
            assert "$ overhand plan" in page.read_text(encoding="utf-8")


def test_the_table_of_values_is_what_the_classes_say() -> None:
    """docs/values.md: the kinds, their classes, coordinates, sensitivities and middles."""
    rows = [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in re.findall(r"^\| `.*\|$", VALUES, re.MULTILINE)
    ]
    listed: list[str] = []
    for specs, name, _, coordinates, distance, _, added in rows[1:]:
        for spec in re.findall(r"`([^`]+)`", specs):
            listed.append(spec)
            given = {"D": 3, "B": 5, "LOW": 0, "HIGH": 1, "NORM": 1}
            labels = "a,b,c,d,e" if "OTHER" not in spec else "a,b,c,d"
            written = spec.replace("LABELS", labels).replace("OTHER", "e")
            written = written.replace("EDGES", "1,2,4,8,16,32")
            for word, number in (("LOW", 10), ("HIGH", 50), ("NORM", 2), ("D", 3), ("B", 5)):
                if word in spec:
                    given[word] = number
                    written = written.replace(word, str(number))
            values = values_of(written)
            assert name == f"`{type(values).__name__}`"
            assert values.dimension == computed(coordinates, given)
            assert values.sensitivity.norm == pytest.approx(computed(distance, given))
            middle = re.split(" in |, ", added)[0]
            assert (values.lows + values.highs)[0] / 2 == computed(middle, given)
    assert sorted(listed) == sorted(re.split(", | or ", FORMS))


def computed(formula: str, given: dict[str, int]) -> float:
    """A formula of a page, where two factors may stand side by side."""
    times = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", formula)
    return float(eval(times, {"sqrt": math.sqrt}, dict(given)))


def test_the_page_of_commands_has_every_command_as_its_help_has_it() -> None:
    """If this fails: python docs/commands.py"""
    page = commands.PAGE.read_text(encoding="utf-8")
    assert re.findall(r"^### overhand ([\w ]+)$", page, re.MULTILINE) == list(COMMANDS)
    assert page == commands.page()


@pytest.mark.slow
@pytest.mark.skipif(not SAME_SAMPLES, reason="another NumPy draws other samples")
def test_the_sessions_of_the_tutorials_run() -> None:
    results = doctest.testfile(str(ROOT / "docs" / "tutorials.md"), module_relative=False)
    assert results.attempted >= 30
    assert results.failed == 0


@pytest.mark.slow
def test_sums_of_the_first_pages_are_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the file that the quickstart's session writes. The noise is another each time."""
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    sums = [command for command in SHOWN if command.startswith("overhand sum")]
    assert len(sums) >= len(START)
    for command in sums:
        printed = overhand(*shlex.split(command)[1:]).stdout
        (now,), (then,) = (re.findall(BAND, text) for text in (printed, SHOWN[command]))
        # The rule is as long as the numbers, and 867 is shorter than 867.4.
        said = [re.sub(f"{BAND}|─", "", text).split() for text in (printed, SHOWN[command])]
        assert said[0] == said[1]
        # Four digits are printed: one band in thousands reaches 1,000, and has no tenths there.
        rounding = 0.7 if "," in now[2] else 0.2
        assert width(now) == pytest.approx(width(then), abs=rounding)


BAND = r"([\d.,]+) +([\d.,]+) to ([\d.,]+)"


def width(band: tuple[str, str, str]) -> float:
    return as_number(band[2]) - as_number(band[1])


def test_the_quickstart_says_what_the_readme_does() -> None:
    """The same command, and every number of its table is explained."""
    page = QUICKSTART.read_text(encoding="utf-8")
    for words in (
        "rms error, worst input",
        "95 % bound on all errors",
        "messages per user",
        "delta spent",
        "mu",
    ):
        assert f"**{words}**" in page
        assert words in SHOWN["overhand plan --horizon 1e6 --mechanism services"]


def test_the_site_has_a_place_for_every_page() -> None:
    """In the side bar; building the site needs Sphinx, which would refuse it, too."""
    contents = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    trees = re.findall(r"^```{toctree}$(.*?)^```$", contents, re.DOTALL | re.MULTILINE)
    placed = re.findall(r"^([a-z-]+)$", "".join(trees), re.MULTILINE)
    pages = [page.stem for page in (ROOT / "docs").glob("*.md") if page.stem != "index"]
    assert sorted(placed) == sorted(pages)


def test_the_readme_links_every_page() -> None:
    """Whoever reads it on a code host has no side bar."""
    pages = [page.name for page in (ROOT / "docs").glob("*.md") if page.stem != "index"]
    assert not [page for page in pages if f"docs/{page}" not in README]


def test_every_test_of_a_statement_is_in_the_index_and_exists() -> None:
    index = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    statements = (ROOT / "tests" / "docs" / "test_paper.py").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", index))
    written = set(re.findall(r"^def (test_\w+)", statements, re.MULTILINE))
    assert named == written


def test_pages_name_only_files_that_exist() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    assert len(pages) >= 5
    for page in pages:
        text = page.read_text(encoding="utf-8")
        named = [ROOT / path for path in re.findall(r"`((?:tests|examples|docs)/[\w./]*)`", text)]
        modules = re.findall(r"`((?!tests/|examples/|docs/|benchmarks/)[\w/]+/\w+\.py)`", text)
        for module in modules:
            assert any((ROOT / part / module).exists() for part in ("", "src/overhand")), module
        linked = [page.parent / path for path in re.findall(r"\]\(([\w./-]+)\)", text)]
        for path in named + linked:
            assert path.exists(), f"{page.name}: {path}"


@pytest.mark.slow
def test_the_table_of_variances_is_computed() -> None:
    """docs/accounting.md, section 2: in a batch of a million users."""
    size, privacy = 10**6, oh.Privacy(1.0, 1e-6)
    laws: list[Callable[[float], Noise]] = [
        lambda v: CoinNoise(((size, BinaryFraction.near(v / size)),)),
        lambda v: CoinNoise(((round(4 * v), HALF),)),
        lambda v: oh.CoinSum.with_variance(size, v).noise(),
    ]
    page = (ROOT / "docs" / "accounting.md").read_text(encoding="utf-8")
    rows = [
        [float(cell) for cell in row.strip("|").split("|")]
        for row in re.findall(r"^\| \d.*\|$", page, re.MULTILINE)
    ]
    assert [row[0] for row in rows] == [1, 3, 5]
    for levels, *variances in rows:
        limit = gaussian_variance(privacy, int(levels))
        computed = [least_variance(law, int(levels), privacy) for law in laws]
        assert variances == pytest.approx([*computed, limit], abs=0.06)


def least_variance(law: Callable[[float], Noise], levels: int, privacy: oh.Privacy) -> float:
    limit = gaussian_variance(privacy, levels)
    return least_scale(lambda v: [Level(law(v))] * levels, privacy, start=limit)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(
    example: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert len(example.read_text(encoding="utf-8").splitlines()) <= 80
    figure = tmp_path / "figure.png"
    monkeypatch.setattr(sys, "argv", [str(example), str(figure)])
    runpy.run_path(str(example), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.count("\n") >= 2
    assert figure.exists() == (example.stem in DRAWN)
    if example.stem in DRAWN:
        shown = SHOWN[f"python examples/{example.name}"]
        assert_same_words(printed.split(), shown.split(), 2e-3 if SAME_SAMPLES else 0.2)
        page = ROOT / "docs" / DRAWN[example.stem]
        assert f"]({example.stem}.png)" in page.read_text(encoding="utf-8")


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 8
    assert set(DRAWN) <= {example.stem for example in EXAMPLES}


# The drawing in the docstring of `errors`, which needs every module and so every extra.


def drawn(text: str) -> list[tuple[int, str]]:
    """Depth and name of every error of a drawing, in its order."""
    found = re.finditer(r"^([│├└ ]*)(?:── )?(\w+)", text, re.MULTILINE)
    lines = [
        (len(match[1]), match[2]) for match in found if match[1] or match[2] == "OverhandError"
    ]
    return [((edge + 3) // 4, name) for edge, name in lines]


def real(error: type[Exception], depth: int = 0) -> Iterator[tuple[int, str]]:
    yield depth, error.__name__
    for below in error.__subclasses__():
        if below.__module__.startswith("overhand."):  # and not one that a test made up
            yield from real(below, depth + 1)


def test_the_drawing_is_the_tree_of_all_errors() -> None:
    for module in pkgutil.walk_packages(oh.__path__, "overhand."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    tree = drawn(errors.__doc__ or "")
    assert sorted(with_parents(tree)) == sorted(with_parents(list(real(errors.OverhandError))))


def with_parents(tree: list[tuple[int, str]]) -> list[tuple[str, ...]]:
    """Every error with all those above it."""
    path: list[str] = []
    found = []
    for depth, name in tree:
        path[depth:] = [name]
        found.append(tuple(path))
    return found


def test_a_drawing_is_read_as_it_looks() -> None:
    drawing = "Words.\n\nOverhandError\n├── A   one\n│   └── B\n│       └── C\n└── D  two\n"
    assert drawn(drawing) == [(0, "OverhandError"), (1, "A"), (2, "B"), (3, "C"), (1, "D")]
    assert with_parents(drawn(drawing))[3] == ("OverhandError", "A", "B", "C")
