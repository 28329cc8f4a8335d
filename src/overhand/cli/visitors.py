"""People who are recommended something, in the processes of a crowd."""

from __future__ import annotations

import asyncio
from functools import partial
from multiprocessing.connection import Connection

import numpy as np

from overhand.cli.crowd import Member
from overhand.model import Counts, Floats
from overhand.processors import processors

MAX_AGE = 0.1
"""Seconds for which a rule is used: a demonstration's people come much faster than others."""

_GROUP = 16
_GROUPS = 2


def visiting(
    url: str, digest: str, features: Floats, means: Floats, uniforms: Floats
) -> list[Member]:
    """People who come in this order, are offered arms of these features, and report once each.

    A reward is 1 if a person's uniform is below the mean of the arm that was chosen. The news is
    who came, and which arms they took.
    """
    processes = max(1, min(processors(), len(features)))
    everybody = np.arange(len(features))
    return [
        partial(_visit, url, digest, some, features[some], means[some], uniforms[some])
        for some in (everybody[first::processes] for first in range(processes))
    ]


async def _visit(
    url: str,
    digest: str,
    people: Counts,
    features: Floats,
    means: Floats,
    uniforms: Floats,
    pipe: Connection,
) -> None:
    """A few at a time, so that the rule they choose by is a new one."""
    from overhand.service.client import AsyncRecommenderClient

    starts = iter(range(0, len(people), _GROUP))

    async def serve(client: AsyncRecommenderClient) -> None:
        for start in starts:
            group = slice(start, start + _GROUP)
            arms = await client.choose_many(features[group])
            chosen = means[group][np.arange(len(arms)), arms]
            await client.report_many(uniforms[group] < chosen, at_once=_GROUP)
            pipe.send((people[group], arms))

    clients = [AsyncRecommenderClient(url, digest=digest, max_age=MAX_AGE) for _ in range(_GROUPS)]
    try:
        for client in clients:
            await client.document()
        pipe.send(None)
        pipe.recv()
        async with asyncio.TaskGroup() as tasks:
            for client in clients:
                tasks.create_task(serve(client))
        pipe.send(None)
    finally:
        for client in clients:
            await client.close()
