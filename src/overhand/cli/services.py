"""`overhand prepare`, `tokens`, `server`, `settle`, `shuffler`: both sides of a deployment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from overhand.cli import options
from overhand.cli.output import check_writable, console, print_json, tell
from overhand.cli.recommender import IsRecommender, LearningOptions
from overhand.cli.settings import ConfigFile, ShowSettings
from overhand.errors import InvalidValue, whole
from overhand.plan import Plan

Host = Annotated[str, typer.Option(help="The address to listen on.")]
Port = Annotated[int, typer.Option(help="The port to listen on.")]
MetricsPort = Annotated[
    int | None, typer.Option(help="A private port for /metrics, on the loopback interface.")
]
Database = Annotated[
    str, typer.Option(help="A SQLite file, or postgresql://... for many processes.")
]
DocumentFile = Annotated[Path, typer.Option("--document", help="The public document.")]
Pinned = Annotated[str | None, typer.Option(help="The digest that the document must have.")]
Certificate = Annotated[
    Path | None, typer.Option(help="A TLS certificate (PEM); without one, put TLS in front.")
]
CertificateKey = Annotated[Path | None, typer.Option(help="The certificate's key (PEM).")]
Authorities = Annotated[
    Path | None,
    typer.Option("--ca", help="Certificates (PEM) to trust instead of the system's."),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Allow http:// to another machine, where anyone on the way can read the token, see "
        "who reports, and change the answers.",
    ),
]

RULES = "rule.key"
BOOK = "server.db"
BOOK_KEYS = f"{BOOK}.keys"
_MOST_TOKENS = 10**8
DIGEST_NOTE = (
    "The services make the noise: clients must get this digest from you, not from the shuffling "
    "service."
)
KEYS_NOTE = (
    "move this file to the server and keep no copy. It is for one book, and is never made again."
)


@options.takes(LearningOptions)
def prepare(
    plan_file: Annotated[Path, typer.Option("--plan", help="A plan saved by `overhand plan`.")],
    directory: Annotated[Path, typer.Option(help="Where the files are written.")] = Path(),
    recommender: IsRecommender = False,
    *,
    asked: LearningOptions,
    as_json: options.Json = False,
) -> None:
    """Make the files of a deployment: the server's key, the document, and a token.

    The key and the token's hash stay with the server; the document is public; the token goes to
    the shuffling service. A recommender's server has a second key, which signs its rules. If the
    services make the noise, the keys of the server's book are made here, once: keep no copy.
    """
    from overhand.service.protocol import Document, KeyPair, RuleKey, create_token, hashed
    from overhand.service.server import Book

    if not recommender:
        asked.check_none()
    plan = Plan.load(plan_file)
    document, key, rule_key = (directory / name for name in ("document.json", "server.key", RULES))
    token, token_hash = directory / "token", directory / "token.sha256"
    book_keys = directory / BOOK_KEYS
    for path in (document, key, rule_key, book_keys, token, token_hash):
        if path.exists():
            raise InvalidValue(f"{path} exists: one directory holds one deployment")
    pair, signing = KeyPair.generate(), RuleKey.generate() if recommender else None
    learning = None if signing is None else asked.learning(plan, signing.public_key)
    made = Document(plan, pair.public_key, learning)
    made.check_guarantee()
    directory.mkdir(parents=True, exist_ok=True)
    pair.save(key)
    if signing is not None:
        signing.save(rule_key)
    Book.make_keys(made, book_keys)
    token_hash.write_text(hashed(create_token(token)).hex() + "\n", encoding="ascii")
    document.write_text(made.to_json(), encoding="utf-8")
    if as_json:
        print_json({"document": str(document), "digest": made.digest, "plan": plan.digest})
        return
    secrets = [path for path in (key, rule_key, book_keys) if path.exists()]
    tell(f"for the server: {', '.join(map(str, [*secrets, token_hash, document]))}")
    tell(f"for the shuffling service: {token}, {document}")
    tell(f"document digest, which the shuffling service and clients pin: {made.digest}")
    if plan.noise_by == "services":
        console.print(DIGEST_NOTE, style="yellow")
        console.print(f"{book_keys}: {KEYS_NOTE}", style="yellow")


def tokens(
    count: Annotated[int | None, options.Whole(help="How many tokens to make.")] = None,
    secrets: Annotated[
        Path,
        typer.Option(
            help="The tokens, one per line: give one to each client, and delete the file."
        ),
    ] = Path("client-tokens"),
    hashes: Annotated[
        Path, typer.Option(help="Their hashes, one per line, for `shuffler --tokens`.")
    ] = Path("client-tokens.sha256"),
    add: Annotated[
        bool, typer.Option("--add", help="Add their hashes to an existing file.")
    ] = False,
    revoke: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<hash>",
            help="Remove a hash from the file: its token is no longer accepted.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Make tokens for clients: each admits one report to `shuffler --tokens`.

    Running services notice additions and revocations within seconds.
    """
    from overhand.service.protocol import change_hashes

    if revoke and (count is not None or add):
        raise InvalidValue(
            "--revoke withdraws tokens: leave out --count and --add, which make them"
        )
    if revoke:
        left = change_hashes(hashes, revoked=_parsed_hashes(revoke))
        if as_json:
            print_json({"revoked": len(revoke), "left": left, "hashes": str(hashes)})
        else:
            tell(f"{len(revoke):,} revoked, {left:,} left in {hashes}")
        return
    if count is None:
        raise InvalidValue("give --count to make tokens, or --revoke to withdraw some")
    whole("count", count, least=1, most=_MOST_TOKENS)
    _make_tokens(count, secrets, hashes, add=add)
    if as_json:
        print_json({"count": count, "secrets": str(secrets), "hashes": str(hashes)})
    else:
        tell(f"{count:,} tokens in {secrets}, their hashes in {hashes}")


def _make_tokens(count: int, secrets: Path, hashes: Path, *, add: bool) -> None:
    """Secrets first: a token that was lost on the way is known to nobody."""
    from overhand.service.protocol import (
        change_hashes,
        hash_lines,
        hashed,
        load_hashes,
        new_token,
        write_secret,
    )

    if add:
        load_hashes(hashes)
    elif hashes.exists():
        raise InvalidValue(f"{hashes} exists: tokens are never overwritten; --add adds to them")
    check_writable("--secrets", secrets)
    check_writable("--hashes", hashes)
    made = [new_token() for _ in range(count)]
    write_secret(secrets, "".join(f"{token}\n" for token in made).encode())
    if add:
        change_hashes(hashes, added=[hashed(token) for token in made])
    else:
        hashes.write_bytes(hash_lines([hashed(token) for token in made]))


def _parsed_hashes(lines: list[str]) -> set[bytes]:
    """Hashes, and not tokens: what stands in a command can be seen by others."""
    if not all(re.fullmatch("[0-9a-fA-F]{64}", line) for line in lines):
        raise InvalidValue("--revoke takes hashes as they are in the file: 64 hexadecimal digits")
    return {bytes.fromhex(line) for line in lines}


def server(
    config: ConfigFile = None,
    show_settings: ShowSettings = False,
    document: DocumentFile = Path("document.json"),
    key: Annotated[Path, typer.Option(help="The server's private key.")] = Path("server.key"),
    rule_key: Annotated[
        Path | None,
        typer.Option(
            help="The key that signs a recommender's rules.",
            show_default=f"{RULES} if the document is of a recommender",
        ),
    ] = None,
    token_hash: Annotated[
        Path, typer.Option(help="The hash of the shuffling service's token.")
    ] = Path("token.sha256"),
    book: Database = BOOK,
    book_keys: Annotated[
        Path | None,
        typer.Option(
            help="The book's keys, needed if the services make the noise: `overhand prepare` made "
            "them. By default next to a SQLite file. Never back them up."
        ),
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8001,
    workers: Annotated[
        int | None,
        typer.Option(help="How many processes open messages; one per core if not given."),
    ] = None,
    patience: Annotated[
        float, typer.Option(help="Seconds after which a missing batch is shown as late.")
    ] = 60.0,
    after: Annotated[
        Path | None,
        typer.Option(help="What `overhand settle` wrote for an earlier plan, to continue its sum."),
    ] = None,
    metrics_port: MetricsPort = None,
    certificate: Certificate = None,
    certificate_key: CertificateKey = None,
) -> None:
    """Run the server: it opens shuffled batches and publishes the running sum, with a dashboard."""
    from overhand.service.server import ServerSettings, run_server
    from overhand.service.web import Listener, run, start_logging

    start_logging("server")
    settings = ServerSettings(
        document=document,
        key=key,
        token_hash=token_hash,
        book=book,
        book_keys=book_keys,
        rule_key=rule_key,
        listener=Listener(host, port, certificate, certificate_key),
        metrics=None if metrics_port is None else Listener(port=metrics_port),
        workers=workers,
        patience=patience,
        after=after,
    )
    run(run_server(settings))


def settle(
    document: DocumentFile = Path("document.json"),
    book: Annotated[str, typer.Option(help="The book of the plan that has ended.")] = BOOK,
    out: Annotated[
        Path, typer.Option(help="Where to write the final sum, for `server --after`.")
    ] = Path("settled.json"),
    as_json: options.Json = False,
) -> None:
    """Record a finished plan's final sum, so that the next plan's running sum continues from it."""
    from overhand.service.protocol import Document
    from overhand.service.server import settled_sum

    if out.exists():
        raise InvalidValue(f"{out} exists: it is never overwritten")
    check_writable("--out", out)
    settled = settled_sum(Document.load(document), book)
    out.write_text(settled.to_json(), encoding="utf-8")
    if as_json:
        print_json({"users": settled.t, "settled": str(out)})
    else:
        tell(f"{settled.t:,} users in {out}")


def shuffler(
    server: Annotated[str, typer.Option(help="The server's address.")],
    config: ConfigFile = None,
    show_settings: ShowSettings = False,
    document: DocumentFile = Path("document.json"),
    store: Database = "shuffler.db",
    store_keys: Annotated[
        Path | None,
        typer.Option(
            help="The store's keys. Created with the store, by default next to a SQLite file. "
            "Never back them up."
        ),
    ] = None,
    token: Annotated[Path, typer.Option(help="The token that the server knows.")] = Path("token"),
    pinned: Pinned = None,
    tokens: Annotated[
        Path | None,
        typer.Option(help="Hashes of client tokens, one per line; each token admits one report."),
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(
            help="Seconds after which a batch is filled up with reports of value 0, or, if the "
            "services make the noise, closed as it is."
        ),
    ] = None,
    tick: Annotated[float, typer.Option(help="Seconds between checks for full batches.")] = 1.0,
    workers: Annotated[
        int | None,
        typer.Option(
            help="How many processes seal what is added to batches; one per core if not given."
        ),
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    metrics_port: MetricsPort = None,
    certificate: Certificate = None,
    certificate_key: CertificateKey = None,
    authorities: Authorities = None,
    insecure: Insecure = False,
    rate_per_address: Annotated[
        float,
        typer.Option(
            help="Reports per second from one address, except this machine's; 0: no limit."
        ),
    ] = 100.0,
    rate_per_token: Annotated[
        float, typer.Option(help="Reports per second with one token; 0: no limit.")
    ] = 1.0,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<origin>",
            help="Pages of this origin, such as https://poll.example, may report. Repeat it for "
            "more, or give * for all.",
        ),
    ] = None,
) -> None:
    """Run the shuffling service: it collects sealed reports and releases full batches, shuffled."""
    from overhand.service.shuffler import ShufflerSettings, run_shuffler
    from overhand.service.web import Listener, run, start_logging

    start_logging("shuffler")
    settings = ShufflerSettings(
        document=document,
        store=store,
        store_keys=store_keys,
        server=server,
        token=token,
        listener=Listener(host, port, certificate, certificate_key),
        metrics=None if metrics_port is None else Listener(port=metrics_port),
        pinned=pinned,
        tokens=tokens,
        deadline=deadline,
        tick=tick,
        workers=workers,
        authorities=authorities,
        insecure=insecure,
        rate_per_address=rate_per_address,
        rate_per_token=rate_per_token,
        origins=tuple(origin or ()),
    )
    run(run_shuffler(settings))
