"""`overhand prepare`, `server`, `shuffler`, `client`: the roles of a deployment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from overhand.cli import options
from overhand.cli.output import console, print_json
from overhand.errors import InvalidValue
from overhand.plan import Plan
from overhand.simulation import read_rows

Host = Annotated[str, typer.Option(help="The address to listen at.")]
Port = Annotated[int, typer.Option(help="The port to listen at.")]
DocumentFile = Annotated[Path, typer.Option("--document", help="The public document.")]
TokenFile = Annotated[
    Path, typer.Option("--token", help="The token between shuffling service and server.")
]
Certificate = Annotated[
    Path | None, typer.Option(help="A TLS certificate (PEM); without one, put TLS in front.")
]
CertificateKey = Annotated[Path | None, typer.Option(help="The certificate's key (PEM).")]


def prepare(
    plan_file: Annotated[Path, typer.Option("--plan", help="A plan with a regular tree.")],
    directory: Annotated[Path, typer.Option(help="Where the files are written.")] = Path(),
    as_json: options.Json = False,
) -> None:
    """Make the files of a deployment: the server's key, the document, and a token.

    The key stays with the server; the document is public; the token goes to both services.
    """
    from overhand.service.document import Document
    from overhand.service.keys import KeyPair, create_token

    directory.mkdir(parents=True, exist_ok=True)
    plan = Plan.load(plan_file)
    document = directory / "document.json"
    if document.exists():
        raise InvalidValue(f"{document} exists: one directory holds one deployment")
    key = KeyPair.create(directory / "server.key")
    made = Document(plan, key.public_key)
    made.check_guarantee()
    create_token(directory / "token")
    document.write_text(made.to_json(), encoding="utf-8")
    if as_json:
        print_json({"document": str(document), "digest": made.digest, "plan": plan.digest})
        return
    console.print(f"wrote {document}, {directory / 'server.key'} and {directory / 'token'}")
    console.print(f"document digest, for the shuffling service and clients to pin: {made.digest}")


def server(
    document: DocumentFile = Path("document.json"),
    key: Annotated[Path, typer.Option(help="The server's private key.")] = Path("server.key"),
    token: TokenFile = Path("token"),
    book: Annotated[Path, typer.Option(help="The server's database.")] = Path("server.db"),
    host: Host = "127.0.0.1",
    port: Port = 8001,
    workers: Annotated[
        int | None, typer.Option(help="Processes that open messages; all cores if not given.")
    ] = None,
    certificate: Certificate = None,
    certificate_key: CertificateKey = None,
) -> None:
    """Run the server: it opens shuffled batches and publishes the running sum, with a dashboard."""
    from overhand.service.logs import start_logging
    from overhand.service.processes import Listener, run
    from overhand.service.server.run import ServerSettings, run_server

    start_logging("server")
    listener = Listener(host, port, certificate, certificate_key)
    run(run_server(ServerSettings(document, key, token, book, listener, workers)))


def shuffler(
    server: Annotated[str, typer.Option(help="The server's address.")],
    document: DocumentFile = Path("document.json"),
    store: Annotated[
        str, typer.Option(help="A SQLite file, or postgresql://... for many processes.")
    ] = "shuffler.db",
    token: TokenFile = Path("token"),
    pinned: Annotated[
        str | None, typer.Option(help="The digest that the document must have.")
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(help="Hashes of client tokens, one a line; each may report once."),
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(help="Seconds after which a batch is filled up with reports of value 0."),
    ] = None,
    tick: Annotated[float, typer.Option(help="Seconds between looks for full batches.")] = 1.0,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    metrics_port: Annotated[
        int | None, typer.Option(help="A private port for /metrics, on the loopback.")
    ] = None,
    certificate: Certificate = None,
    certificate_key: CertificateKey = None,
) -> None:
    """Run the shuffling service: it collects sealed reports and releases full batches, shuffled."""
    from overhand.service.logs import start_logging
    from overhand.service.processes import Listener, run
    from overhand.service.shuffler.run import ShufflerSettings, run_shuffler

    start_logging("shuffler")
    settings = ShufflerSettings(
        document,
        store,
        server,
        token,
        Listener(host, port, certificate, certificate_key),
        None if metrics_port is None else Listener("127.0.0.1", metrics_port),
        pinned,
        tokens,
        deadline,
        tick,
    )
    run(run_shuffler(settings))


def client(
    url: Annotated[str, typer.Argument(help="The shuffling service's address.")],
    value: Annotated[
        list[str] | None, typer.Argument(help="The value, number by number.", show_default=False)
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A .csv file of values, one a line.")] = None,
    token: Annotated[str | None, typer.Option(help="The client's token, if one is needed.")] = None,
    pinned: Annotated[
        str | None, typer.Option(help="The digest that the document must have.")
    ] = None,
    at_once: Annotated[int, typer.Option(help="How many requests at a time.")] = 16,
    as_json: options.Json = False,
) -> None:
    """Report values: encoded and sealed here, so that nobody else ever sees them."""
    asyncio.run(_report(url, value or [], file, token, pinned, at_once, as_json))


async def _report(
    url: str,
    value: list[str],
    file: Path | None,
    token: str | None,
    pinned: str | None,
    at_once: int,
    as_json: bool,
) -> None:
    from overhand.service.client import AsyncClient

    if bool(value) == (file is not None):
        raise InvalidValue("give a value or --file")
    async with AsyncClient(url, token=token, digest=pinned) as reporter:
        document = await reporter.document()
        if file is not None:
            rows = list(read_rows(file, document.plan.values))
        else:
            numbers = [float(number) for number in value]
            rows = [numbers[0] if document.plan.values.is_scalar else numbers]
        counted = await reporter.report_many(rows, at_once=at_once)
    if as_json:
        print_json({"counted": counted})
    else:
        console.print(f"{counted:,} counted")
