"""`overhand prepare`, `tokens`, `server`, `settle`, `shuffler`: both sides of a deployment."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from overhand.bandits import ConstantsName, Practical, Theory
from overhand.cli import options
from overhand.cli.options import ServicesPlanOptions
from overhand.cli.output import answer, check_writable, console, print_json, show_status, tell
from overhand.cli.settings import use_file
from overhand.deploy.protocol import keys
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.learning import Learning
from overhand.errors import InvalidValue, whole
from overhand.planning import Plan

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        help="Read options from this TOML file, from the table named after this command; the "
        "command line and environment variables take precedence.",
        callback=use_file,
        is_eager=True,
    ),
]
ShowSettings = Annotated[
    bool,
    typer.Option(
        "--show-settings",
        help="Print all options and where they come from, and exit.",
        allow_from_autoenv=False,
        show_envvar=False,
    ),
]
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
    Path | None, typer.Option("--ca", help="Certificates (PEM) to trust instead of the system's.")
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Allow http:// to another machine, where anyone on the way can read the token, see "
        "who reports, and change the answers.",
    ),
]

POLICY_KEY = "policy.key"
DATABASE = "server.db"
DATABASE_KEYS = f"{DATABASE}.keys"
_MOST_TOKENS = 10**8
DIGEST_NOTE = (
    "The services make the noise: clients must get this digest from you, not from the shuffling "
    "service."
)
KEYS_NOTE = (
    "move this file to the server and keep no copy. It is for one database, and never made again."
)


def _constants_of(plan: Plan, policy: str | None, constant: float | None) -> Practical | Theory:
    """Of the policies for a recommender with this plan."""
    dimension, horizon = options.features_of(plan.values), plan.horizon
    if policy != "theory":
        return Practical(dimension, constant)
    if constant is not None:
        raise InvalidValue("--policy theory does not use --constant")
    return Theory(dimension, horizon, max(1.0, plan.error_bound(1 / (2 * horizon))))


def _arms_of(path: Path) -> dict[str, tuple[float, ...]]:
    try:
        written = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_to_dict)
        # Not float(x), which takes digits in quotes for a number.
        return {name: tuple(0.0 + x for x in arm) for name, arm in written.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InvalidValue(
            f'{path} must be a JSON object such as {{"jazz": [0.6, 0.8]}}: {error}'
        ) from None


def _to_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    named = dict(pairs)
    if len(named) < len(pairs):
        raise ValueError("a name occurs twice")
    return named


@options.takes(ServicesPlanOptions, without=("tree", "composition", "error", "max_messages"))
def prepare(
    plan_file: Annotated[Path | None, typer.Option("--plan")] = None,
    directory: Path = Path(),
    recommender: Annotated[bool, typer.Option("--recommender")] = False,
    *,
    asked: ServicesPlanOptions,
    constant: float | None = None,
    policy: Annotated[ConstantsName | None, typer.Option(show_default="practical")] = None,
    features: str | None = None,
    arms: Path | None = None,
    as_json: options.Json = False,
) -> None:
    """Make the files of a deployment: the server's key, the document, and a token.

    The plan is that of a file, or the best one for --horizon users and two services, unless other
    options say otherwise. The key and the token's hash stay with the server; the document is
    public; the token goes to the shuffling service. A recommender's server has a second key, which
    signs policies. If the services make the noise, the keys of the server's database are made here,
    once: keep no copy.

    Args:
        plan_file: A plan saved by `overhand plan`, instead of one for --horizon and so on.
        directory: Where the files are written.
        recommender: For a recommender that learns from the plan's statistics.
        constant: The first feature of every arm, if all have the same.
        policy: practical: constants from the distribution of the noise; theory: the paper's, which
            learn very slowly.
        features: The names of the features, separated by commas.
        arms: Arms that are the same for everybody: a JSON object of names and features.
    """
    from overhand.deploy.server.store import ServerStore

    learnt = {"constant": constant, "policy": policy, "features": features, "arms": arms}
    for name, given in learnt.items():
        if given is not None and not recommender:
            raise InvalidValue(f"--{name} is for recommenders: give --recommender, too")
    document, key = directory / "document.json", directory / "server.key"
    token, token_hash = directory / "token", directory / "token.sha256"
    policy_key, database_keys = directory / POLICY_KEY, directory / DATABASE_KEYS
    for path in (document, key, policy_key, database_keys, token, token_hash):
        if path.exists():
            raise InvalidValue(f"{path} exists: one directory holds one deployment")
    plan = _choose_plan(plan_file, asked, recommender=recommender)
    pair, signing = keys.KeyPair.generate(), keys.PolicyKey.generate() if recommender else None
    learning = None
    if signing is not None:
        constants = _constants_of(plan, policy, constant)
        names = () if features is None else tuple(features.split(","))
        by_name = {} if arms is None else _arms_of(arms)
        learning = Learning(constants, signing.public_key, names, by_name)
    made = Document(plan, pair.public_key, learning)
    made.check_guarantee()
    directory.mkdir(parents=True, exist_ok=True)
    pair.save(key)
    if signing is not None:
        signing.save(policy_key)
    ServerStore.make_keys(made, database_keys)
    token_hash.write_text(keys.hash_token(keys.create_token(token)).hex() + "\n", encoding="ascii")
    document.write_text(made.to_json(), encoding="utf-8")
    if as_json:
        print_json({"document": str(document), "digest": made.digest, "plan": plan.digest})
        return
    tell(options.describe_trust(plan))
    secrets = [path for path in (key, policy_key, database_keys) if path.exists()]
    tell(f"for the server: {', '.join(map(str, [*secrets, token_hash, document]))}")
    tell(f"for the shuffling service: {token}, {document}")
    tell(f"document digest, which the shuffling service and clients pin: {made.digest}")
    if plan.noise_by == "services":
        console.print(DIGEST_NOTE, style="yellow")
        console.print(f"{database_keys}: {KEYS_NOTE}", style="yellow")


def _choose_plan(plan_file: Path | None, asked: ServicesPlanOptions, *, recommender: bool) -> Plan:
    if plan_file is None:
        with show_status("searching for the best plan"):
            return asked.plan_for_regret() if recommender else asked.plan()
    if asked != ServicesPlanOptions():
        raise InvalidValue("--plan is a plan: leave out the options that another would be made by")
    return Plan.load(plan_file)


def tokens(
    count: Annotated[int | None, options.Whole()] = None,
    secrets: Path = Path("client-tokens"),
    hashes: Path = Path("client-tokens.sha256"),
    add: Annotated[bool, typer.Option("--add")] = False,
    revoke: Annotated[list[str] | None, typer.Option(metavar="<hash>")] = None,
    as_json: options.Json = False,
) -> None:
    """Make tokens for clients: each admits one report to `shuffler --tokens`.

    Running services notice additions and revocations within seconds.

    Args:
        count: How many tokens to make.
        secrets: The tokens, one per line: give one to each client, and delete the file.
        hashes: Their hashes, one per line, for `shuffler --tokens`.
        add: Add their hashes to an existing file.
        revoke: Remove a hash from the file: its token is no longer accepted.
    """
    if revoke and (count is not None or add):
        raise InvalidValue("--revoke withdraws tokens: leave out --count and --add")
    if revoke:
        # Hashes, and not tokens: others can see what stands in a command.
        if not all(re.fullmatch("[0-9a-fA-F]{64}", line) for line in revoke):
            raise InvalidValue("--revoke takes hashes as in the file: 64 hexadecimal digits")
        left = keys.change_hashes(hashes, revoked={bytes.fromhex(line) for line in revoke})
        result = {"revoked": len(revoke), "left": left, "hashes": str(hashes)}
        answer(f"{len(revoke):,} revoked, {left:,} left in {hashes}", result, as_json=as_json)
        return
    if count is None:
        raise InvalidValue("give --count to make tokens, or --revoke to withdraw some")
    whole("count", count, least=1, most=_MOST_TOKENS)
    if add:
        keys.load_hashes(hashes)
    elif hashes.exists():
        raise InvalidValue(f"{hashes} exists: tokens are never overwritten; --add adds to them")
    check_writable("--secrets", secrets)
    check_writable("--hashes", hashes)
    made = [keys.new_token() for _ in range(count)]
    # Secrets first: a hash whose token was lost would be of no use.
    keys.write_secret(secrets, "".join(f"{token}\n" for token in made).encode())
    hashed = [keys.hash_token(token) for token in made]
    if add:
        keys.change_hashes(hashes, added=hashed)
    else:
        hashes.write_bytes(keys.hash_lines(hashed))
    result = {"count": count, "secrets": str(secrets), "hashes": str(hashes)}
    answer(f"{count:,} tokens in {secrets}, their hashes in {hashes}", result, as_json=as_json)


def server(
    config: ConfigFile = None,
    show_settings: ShowSettings = False,
    document: DocumentFile = Path("document.json"),
    key: Path = Path("server.key"),
    policy_key: Annotated[
        Path | None, typer.Option(show_default=f"{POLICY_KEY} for a recommender's document")
    ] = None,
    token_hash: Path = Path("token.sha256"),
    database: Database = DATABASE,
    database_keys: Path | None = None,
    host: Host = "127.0.0.1",
    port: Port = 8001,
    workers: int | None = None,
    patience: float = 60.0,
    after: Path | None = None,
    metrics_port: MetricsPort = None,
    certificate: Certificate = None,
    certificate_key: CertificateKey = None,
) -> None:
    """Run the server: it opens shuffled batches and publishes the running sum, with a dashboard.

    Args:
        key: The server's private key.
        policy_key: The key that signs a recommender's policies.
        token_hash: The hash of the shuffling service's token.
        database_keys: The database's keys, needed if the services make the noise: `overhand
            prepare` made them. By default next to a SQLite file. Never back them up.
        workers: How many processes open messages; one per core if not given.
        patience: Seconds after which a missing batch is shown as late.
        after: What `overhand settle` wrote for an earlier plan, to continue its sum.
    """
    from overhand.deploy.http.listening import Endpoint, run
    from overhand.deploy.http.telemetry import start_logging
    from overhand.deploy.server.running import ServerSettings, run_server

    start_logging("server")
    settings = ServerSettings(
        document=document,
        key=key,
        token_hash=token_hash,
        database=database,
        database_keys=database_keys,
        policy_key=policy_key,
        endpoint=Endpoint(host, port, certificate, certificate_key),
        metrics=None if metrics_port is None else Endpoint(port=metrics_port),
        workers=workers,
        patience=patience,
        after=after,
    )
    run(run_server(settings))


def settle(
    document: DocumentFile = Path("document.json"),
    database: str = DATABASE,
    out: Path = Path("settled.json"),
    as_json: options.Json = False,
) -> None:
    """Record a finished plan's final sum, so that the next plan's running sum continues from it.

    Args:
        database: The database of the plan that has ended.
        out: Where to write the final sum, for `server --after`.
    """
    from overhand.deploy.server.running import settled_sum

    if out.exists():
        raise InvalidValue(f"{out} exists: it is never overwritten")
    check_writable("--out", out)
    settled = settled_sum(Document.load(document), database)
    out.write_text(settled.to_json(), encoding="utf-8")
    result = {"users": settled.t, "settled": str(out)}
    answer(f"{settled.t:,} users in {out}", result, as_json=as_json)


def shuffler(
    server: Annotated[str, typer.Option()],
    config: ConfigFile = None,
    show_settings: ShowSettings = False,
    document: DocumentFile = Path("document.json"),
    store: Database = "shuffler.db",
    store_keys: Path | None = None,
    token: Path = Path("token"),
    pinned: Pinned = None,
    tokens: Path | None = None,
    deadline: float | None = None,
    answer_within: float = 3600.0,
    most_waiting: Annotated[int, options.Whole()] = 1 << 30,
    tick: float = 1.0,
    workers: int | None = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    metrics_port: MetricsPort = None,
    certificate: Certificate = None,
    certificate_key: CertificateKey = None,
    ca: Authorities = None,
    insecure: Insecure = False,
    rate_per_address: float = 100.0,
    rate_per_token: float = 1.0,
    origin: Annotated[list[str] | None, typer.Option(metavar="<origin>")] = None,
) -> None:
    """Run the shuffling service: it collects sealed reports and releases full batches, shuffled.

    Args:
        server: The server's address.
        store_keys: The store's keys. Created with the store, by default next to a SQLite file.
            Never back them up.
        token: The token that the server knows.
        tokens: Hashes of client tokens, one per line; each token admits one report.
        deadline: Seconds after which a batch is filled up with reports of value 0, or, if the
            services make the noise, closed as it is.
        answer_within: Seconds after which a block of pairs that the server has not answered is
            closed without an answer, so that no report in it can be read any more.
        most_waiting: How many bytes of full batches may wait for the server: with more, reports are
            refused for a while.
        tick: Seconds between checks for full batches.
        workers: How many processes seal what is added to batches; one per core if not given.
        rate_per_address: Reports per second from one address, except this machine's; 0: no limit.
        rate_per_token: Reports per second with one token; 0: no limit.
        origin: Pages of this origin, such as https://poll.example, may report. Repeat it for more,
            or give * for all.
    """
    from overhand.deploy.http.listening import Endpoint, run
    from overhand.deploy.http.telemetry import start_logging
    from overhand.deploy.shuffler.running import ShufflerSettings, run_shuffler

    start_logging("shuffler")
    settings = ShufflerSettings(
        document=document,
        store=store,
        store_keys=store_keys,
        server=server,
        token=token,
        endpoint=Endpoint(host, port, certificate, certificate_key),
        metrics=None if metrics_port is None else Endpoint(port=metrics_port),
        pinned=pinned,
        tokens=tokens,
        deadline=deadline,
        answer_within=answer_within,
        most_waiting=most_waiting,
        tick=tick,
        workers=workers,
        authorities=ca,
        insecure=insecure,
        rate_per_address=rate_per_address,
        rate_per_token=rate_per_token,
        origins=tuple(origin or ()),
    )
    run(run_shuffler(settings))
