"""`overhand client`: report values, and resend what could not be delivered."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from overhand.cli import options
from overhand.cli.output import answer, print_json, progress_bar, say, tell
from overhand.cli.services import Authorities, Insecure
from overhand.errors import InvalidValue, whole
from overhand.lab.simulation import read_rows
from overhand.values import Values

if TYPE_CHECKING:
    from overhand.deploy.client import AsyncClient, NotCounted
    from overhand.deploy.transport import Transport

_SAID_EVERY = 10.0  # seconds


def client(
    url: str,
    value: Annotated[list[str] | None, typer.Argument(show_default=False)] = None,
    file: Path | None = None,
    resend: Path | None = None,
    device: Path | None = None,
    token: Annotated[str | None, typer.Option(envvar="OVERHAND_TOKEN")] = None,
    digest: str | None = None,
    trust_service: Annotated[bool, typer.Option("--trust-service")] = False,
    authorities: Authorities = None,
    insecure: Insecure = False,
    at_once: Annotated[int, options.Whole()] = 16,
    as_json: options.Json = False,
) -> None:
    """Report values: each is encoded and sealed on this machine before it is sent.

    Args:
        url: The shuffling service's address.
        value: The value: a label, a number, or several.
        file: A .csv file of values, one per line.
        resend: Send the reports of this file, which an earlier call could not deliver.
        device: This is one person's device: keep its reports in this file before they are sent, and
            never make more of them than the plan allows per person.
        token: The client's token, if one is needed.
        digest: The document's digest, from a source other than the shuffling service.
        trust_service: Accept the key from the shuffling service: users are then not protected from
            it.
        at_once: How many requests run at the same time.
    """
    from overhand.deploy.client import AsyncClient, NotCounted

    if [bool(value), file is not None, resend is not None].count(True) != 1:
        raise InvalidValue("give a value, --file or --resend")
    if resend is not None and device is not None:
        raise InvalidValue("give --resend or --device, not both: each names a file of reports")
    whole("at_once", at_once, least=1)
    reporter = AsyncClient(
        url,
        digest=digest,
        trust_service=trust_service,
        kept=resend or device,
        transport=_transport(url, token, authorities, insecure=insecure),
    )
    if resend is not None:
        work = _resend(reporter, resend, at_once)
    else:
        work = _report(reporter, value or [], file, at_once, one=token is not None)
    try:
        counted = asyncio.run(work)
    except NotCounted as failure:
        if resend is None:  # otherwise they are still in its file, and may all be sent again
            _advise(failure, file, device, as_json)
        raise
    answer(f"{counted:,} counted", {"counted": counted}, as_json=as_json)


def _transport(url: str, token: str | None, ca: Path | None, *, insecure: bool) -> Transport:
    """Requests to a service, with a line on standard error while they go unanswered."""
    from overhand.deploy.transport import Answer, HttpTransport, Unreachable, Untrusted

    class PatientTransport(HttpTransport):
        _said = -math.inf

        async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
            try:
                return await super().request(method, path, body)
            except Untrusted:
                raise
            except Unreachable:
                if time.monotonic() - self._said >= _SAID_EVERY:
                    self._said = time.monotonic()
                    say("waiting", f"{url} does not answer; trying again", style="yellow")
                raise

    return PatientTransport(url, token=token, authorities=ca, insecure=insecure)


async def _report(
    reporter: AsyncClient, value: list[str], file: Path | None, at_once: int, *, one: bool
) -> int:
    async with reporter:
        values = (await reporter.document()).plan.values
        rows = values.rows(_parse(value, values)) if file is None else read_rows(file, values)
        if one and len(rows) > 1:
            raise InvalidValue(f"a token admits one report, and {file} has {len(rows)} values")
        with progress_bar(f"{len(rows):,} values", len(rows)) as advance:
            return await reporter.report_rows(rows, at_once=at_once, advance=advance)


async def _resend(reporter: AsyncClient, path: Path, at_once: int) -> int:
    from overhand.deploy.client import ReportJournal

    async with reporter:
        document, kept = await reporter.document(), ReportJournal(path)
        if not kept.count_made(document):
            raise InvalidValue(f"{path} holds no reports for the plan {document.digest[:12]}")
        left = len(kept.find_undelivered(document))
        with progress_bar(f"{left:,} reports", left) as advance:
            return await reporter.resend(at_once=at_once, advance=advance)


def _advise(failure: NotCounted, file: Path | None, device: Path | None, as_json: bool) -> None:
    """Say what to do about undelivered reports: never report their values again."""
    from overhand.deploy.client import AlreadyReported, ReportJournal

    kept = str(device) if device and failure.reports else None
    if failure.reports and device is None:
        digest = hashlib.sha256(b"".join(failure.reports)).hexdigest()
        kept = f"undelivered-{digest[:12]}.reports"
        if not Path(kept).exists():  # the same ones, from an earlier try
            ReportJournal.create(Path(kept), failure.reports)
    begun = 0 if isinstance(failure, AlreadyReported) else failure.counted + len(failure.reports)
    if as_json:
        print_json({"counted": failure.counted, "undelivered": kept, "begun": begun})
        return
    if kept is not None:
        tell(f"{len(failure.reports):,} not delivered: try again with --resend {kept}")
    if file is not None and begun:
        tell(f"the first {begun:,} values are already reported: leave them out of the next call")


def _parse(words: list[str], values: Values) -> Any:
    """The value of these words, as `rows` takes it."""
    if len(words) != values.columns:
        raise InvalidValue(
            f"a value of {values} takes {values.columns} arguments, not {len(words)}"
        )
    try:
        return values.parse_cells([words])
    except ValueError as error:
        raise InvalidValue(f"a value must consist of numbers: {error}") from None
