"""`overhand verify`: what a document promises, recomputed, and the digest that clients pin."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.markup import escape

from overhand.cli import options
from overhand.cli.output import console, format_bytes, levels_table, plural, print_json, show_status
from overhand.cli.services import Authorities, Insecure, Pinned
from overhand.deploy.protocol.document import Document
from overhand.errors import InvalidValue, ServiceError

_PATH = "/v1/document"
_TRUST = {
    "users": "each user makes a part of the noise: the guarantee rests on the others doing so "
    "(honest={honest:g}), and on a shuffling service that follows the protocol; both services "
    "together learn everything. A client should pin the digest",
    "services": "the shuffling service and the server each add enough noise to every block: the "
    "guarantee holds if one of them is honest, whatever other users do; both together learn "
    "everything. A client must pin the digest, obtained from whoever runs the server",
}
_DRAWS = {
    "nothing": "nothing: clients need no noise sampler",
    "coins": "coins, which are comparisons of random bits",
    "noise": "its part of the noise, from the distribution of each level",
}


def verify(
    document: str,
    pinned: Pinned = None,
    authorities: Authorities = None,
    insecure: Insecure = False,
    as_json: options.Json = False,
) -> None:
    """Check a document and recompute its guarantee, which some clients cannot do themselves.

    Args:
        document: The document: a file, or the shuffling service's address.
    """
    if document.startswith(("http://", "https://")):
        content = asyncio.run(_fetch(document, authorities, insecure=insecure))
        found = Document.from_bytes(content, pinned)
    else:
        found = Document.load(Path(document), pinned)
    with show_status("recomputing the guarantee"):
        found.check_guarantee()
        summary = _summarize(found)
    if as_json:
        print_json(summary)
    else:
        _show(found, summary)


async def _fetch(url: str, authorities: Path | None, *, insecure: bool) -> bytes:
    """From a shuffling service, or from wherever a copy of the document is."""
    from overhand.deploy.transport import HttpTransport

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


def _summarize(document: Document) -> dict[str, Any]:
    plan, draws = document.plan, "nothing"  # from a distribution that is not uniform
    of_plan = ["epsilon", "delta", "delta_spent", "mu", "values", "horizon", "most_users"]
    of_plan += ["noise_by", "honest", "reports"]
    planned = plan.summary()
    if plan.noise_by != "services":
        draws = "coins" if all(m.kind == "coins" for m in plan.mechanisms) else "noise"
    return {
        "digest": document.digest,
        "version": document.version,
        "key_id": document.key_id.hex(),
        **{name: planned[name] for name in of_plan},
        "client_draws": draws,
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


def _show(document: Document, summary: dict[str, Any]) -> None:
    plan = document.plan
    often = "once" if plan.reports == 1 else f"{plan.reports} times"
    mu = "" if plan.mu is None else f", from mu={plan.mu:.4f}"
    users = f"of at most {plan.horizon:,} users"
    if plan.most_users > plan.horizon:
        users = f"of about {plan.horizon:,} users, and at most {plan.most_users:,}"
    lines = {
        "guarantee": f"{plan.privacy} for a person who reports {often}; recomputed, it spends "
        f"delta={plan.delta_spent:.3g}{mu}",
        "trust": _TRUST[plan.noise_by].format(honest=plan.honest),
        "values": f"{plan.values}, {users}",
        "a report": f"{plural(summary['messages'], 'message')}, "
        f"{format_bytes(summary['report_bytes'])}",
        "a client draws": _DRAWS[summary["client_draws"]],
        "server's key": summary["key_id"],
        **_learning_lines(document),
    }
    for name, words in lines.items():
        console.print(f"{name:<15} {words}", soft_wrap=True, highlight=False)
    console.print(levels_table(plan))
    console.print(f"{'digest to pin':<15} {document.digest}", soft_wrap=True, highlight=False)


def _learning_lines(document: Document) -> dict[str, str]:
    """How a recommender learns, in words."""
    learning = document.learning
    if learning is None:
        return {}
    constant = learning.constants.constant
    policy = learning.entry()["policy"]
    first = "" if constant is None else f", the first of them always {constant:.6g}"
    arms = f"; {len(learning.arms):,} arms are named" if learning.arms else ""
    return {
        "recommender": f"devices choose by its policies and report features of the arm they took, "
        f"and the reward; the arm itself is not protected where others see it ({policy} policies)",
        "features": f"{escape(', '.join(learning.names))}{first}{arms}",
        "policy key": learning.policy_key.hex(),
    }
