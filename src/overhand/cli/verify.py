"""`overhand verify`: what a document promises, recomputed, and the digest that clients pin."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from overhand.cli import options
from overhand.cli.output import console, levels_table, plural, print_json, size, working
from overhand.cli.recommender import learning_lines
from overhand.cli.services import Authorities, Insecure, Pinned
from overhand.errors import InvalidValue, ServiceError
from overhand.plan import Plan

if TYPE_CHECKING:
    from overhand.service.protocol import Document

_PATH = "/v1/document"
_TRUST = {
    "users": "each user makes a part of the noise: the guarantee rests on the others doing so "
    "(honest={honest:g}), and on a shuffling service that follows the protocol; both services "
    "together learn everything. A client should pin the digest",
    "services": "the shuffling service and the server each make enough noise: the guarantee "
    "holds if one of them is honest, whatever other users do; both together learn everything. "
    "A client must pin the digest, obtained from whoever runs the server",
}
_DRAWS = {
    "nothing": "nothing: clients need no noise sampler",
    "coins": "coins, which are comparisons of random bits",
    "noise": "its part of the noise, from the distribution of each level",
}


def verify(
    document: Annotated[
        str, typer.Argument(help="The document: a file, or the shuffling service's address.")
    ],
    pinned: Pinned = None,
    authorities: Authorities = None,
    insecure: Insecure = False,
    as_json: options.Json = False,
) -> None:
    """Check a document and recompute its guarantee, which some clients cannot do themselves."""
    from overhand.service.protocol import Document

    if document.startswith(("http://", "https://")):
        content = asyncio.run(_fetched(document, authorities, insecure=insecure))
        found = Document.from_bytes(content, pinned)
    else:
        found = Document.load(Path(document), pinned)
    with working("recomputing the guarantee"):
        found.check_guarantee()
        told = _told(found)
    if as_json:
        print_json(told)
    else:
        _show(found, told)


async def _fetched(url: str, authorities: Path | None, *, insecure: bool) -> bytes:
    """From a shuffling service, or from wherever a copy of the document is."""
    from overhand.service.web import HttpTransport

    try:
        parts = urlsplit(url)
        is_address = parts.hostname and parts.port != 0 and not (parts.query or parts.fragment)
    except ValueError:  # half an IPv6 address, or a port that is none
        is_address = False
    if not is_address:
        raise InvalidValue(f"{url!r} is not the address of a service or of a document")
    is_service = not parts.path.endswith((".json", _PATH))
    base, path = (url, _PATH) if is_service else (f"{parts.scheme}://{parts.netloc}", parts.path)
    transport = HttpTransport(base, authorities=authorities, insecure=insecure)
    try:
        answer = await transport.request("GET", path)
    finally:
        await transport.close()
    if answer.status != 200:
        raise ServiceError(f"GET {path} at {base} was answered with {answer.status}, not 200")
    return answer.body


def _told(document: Document) -> dict[str, Any]:
    plan = document.plan
    return {
        "digest": document.digest,
        "version": document.version,
        "key_id": document.key_id.hex(),
        "epsilon": plan.privacy.epsilon,
        "delta": plan.privacy.delta,
        "delta_spent": plan.delta_spent,
        "values": plan.values.spec,
        "horizon": plan.horizon,
        "noise_by": plan.noise_by,
        "honest": plan.honest,
        "reports": plan.reports,
        "client_draws": _drawn(plan),
        "messages": plan.messages_per_user,
        "report_bytes": document.formats.report_length,
        "learning": None if document.learning is None else document.learning.entry(),
        "levels": [
            {
                "level": level.level,
                "mechanism": mechanism.kind,
                "batch_size": level.size,
                "messages": level.messages,
                "message_bits": level.message_bits,
                "clear_numbers": level.clear_numbers,
                "bytes": level.part_bytes,
            }
            for level, mechanism in zip(document.formats.levels, plan.mechanisms, strict=True)
        ],
    }


def _drawn(plan: Plan) -> str:
    """What a client draws from a non-uniform distribution to hide a value."""
    if plan.noise_by == "services":
        return "nothing"
    return "coins" if all(m.kind == "coins" for m in plan.mechanisms) else "noise"


def _show(document: Document, told: dict[str, Any]) -> None:
    plan = document.plan
    often = "once" if plan.reports == 1 else f"{plan.reports} times"
    lines = {
        "guarantee": f"{plan.privacy} for a person who reports {often}; recomputed, it spends "
        f"delta={plan.delta_spent:.3g}",
        "trust": _TRUST[plan.noise_by].format(honest=plan.honest),
        "values": f"{plan.values}, of at most {plan.horizon:,} users",
        "a report": f"{plural(told['messages'], 'message')}, {size(told['report_bytes'])}",
        "a client draws": _DRAWS[told["client_draws"]],
        "server's key": told["key_id"],
        **learning_lines(document),
    }
    for name, words in lines.items():
        console.print(f"{name:<15} {words}", soft_wrap=True, highlight=False)
    console.print(levels_table(plan))
    console.print(f"{'digest to pin':<15} {document.digest}", soft_wrap=True, highlight=False)
