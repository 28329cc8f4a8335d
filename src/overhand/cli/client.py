"""`overhand client`: report values, and later what could not be delivered."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from overhand.cli import options
from overhand.cli.output import console, print_json, progress_bar
from overhand.cli.services import Authorities, Pinned
from overhand.errors import InvalidValue
from overhand.simulation import read_rows
from overhand.values import Values

if TYPE_CHECKING:
    from overhand.service.client import AsyncClient, NotCounted


def client(
    url: Annotated[str, typer.Argument(help="The shuffling service's address.")],
    value: Annotated[
        list[str] | None, typer.Argument(help="The value, number by number.", show_default=False)
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A .csv file of values, one a line.")] = None,
    resend: Annotated[
        Path | None, typer.Option(help="What an earlier call could not deliver, as it named it.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(help="The client's token, if one is needed.", envvar="OVERHAND_TOKEN"),
    ] = None,
    pinned: Pinned = None,
    authorities: Authorities = None,
    at_once: Annotated[int, typer.Option(help="How many requests at a time.")] = 16,
    as_json: options.Json = False,
) -> None:
    """Report values: encoded and sealed here, so that nobody else ever sees them."""
    from overhand.service.client import AsyncClient, NotCounted

    if [bool(value), file is not None, resend is not None].count(True) != 1:
        raise InvalidValue("give a value, --file or --resend")
    reporter = AsyncClient(url, token=token, digest=pinned, authorities=authorities)
    if resend is not None:
        work = _resend(reporter, resend)
    else:
        work = _report(reporter, value or [], file, at_once, one=token is not None)
    try:
        counted = asyncio.run(work)
    except NotCounted as failure:
        if resend is None:  # or they are in its file still, and may all be sent again
            _tell(failure, file, as_json)
        raise
    if as_json:
        print_json({"counted": counted})
    else:
        console.print(f"{counted:,} counted")


async def _report(
    reporter: AsyncClient, value: list[str], file: Path | None, at_once: int, *, one: bool
) -> int:
    async with reporter:
        values = (await reporter.document()).plan.values
        rows = values.rows([_typed(value, values)]) if file is None else read_rows(file, values)
        if one and len(rows) > 1:
            raise InvalidValue(f"a token admits one report, and {file} has {len(rows)} values")
        with progress_bar(f"{len(rows):,} values", len(rows)) as advance:
            return await reporter.report_rows(rows, at_once=at_once, advance=advance)


async def _resend(reporter: AsyncClient, path: Path) -> int:
    async with reporter:
        length = (await reporter.document()).formats.report_length
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InvalidValue(f"cannot read {path}: {error}") from error
        if not content or len(content) % length:
            raise InvalidValue(f"{path} does not hold reports of {length} bytes for this plan")
        reports = [content[at : at + length] for at in range(0, len(content), length)]
        with progress_bar(f"{len(reports):,} reports", len(reports)) as advance:
            for report in reports:
                await reporter.send(report)
                advance(1)
        return len(reports)


def _tell(failure: NotCounted, file: Path | None, as_json: bool) -> None:
    """What to do about reports that were not delivered: never to report their values again."""
    kept = _kept(failure.reports) if failure.reports else None
    begun = failure.counted + len(failure.reports)
    if as_json:
        print_json({"counted": failure.counted, "undelivered": kept, "begun": begun})
        return
    if kept is not None:
        console.print(f"{len(failure.reports):,} not delivered: try again with --resend {kept}")
    if file is not None:
        console.print(f"the first {begun:,} values are begun: leave them out of the next call")


def _kept(reports: Sequence[bytes]) -> str:
    """The file that they are in now."""
    from overhand.service.protocol import write_secret

    content = b"".join(reports)
    path = f"undelivered-{hashlib.sha256(content).hexdigest()[:12]}.reports"
    if not Path(path).exists():  # the same ones, from an earlier try
        write_secret(path, content)
    return path


def _typed(words: list[str], values: Values) -> Any:
    """The value of these numbers, in the shape that it is given in if they are as many."""
    try:
        numbers = np.array([float(word) for word in words])
    except ValueError as error:
        raise InvalidValue(f"a value is made of numbers: {error}") from None
    shape = values.given_shape
    return (numbers.reshape(shape) if numbers.size == math.prod(shape) else numbers).tolist()
