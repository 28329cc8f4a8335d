"""Devices in JavaScript that choose and report, at the real services: they learn together."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from pathlib import Path

import pytest
import uvicorn

import overhand as oh
from overhand.bandits import Practical, plan_for_regret
from overhand.deploy.protocol.learning import Learning
from support.loopback_system import POLICY_KEY, System, run

CLIENT = Path(__file__).parents[2] / "clients" / "javascript"
CONTEXTS = [[0.9, 0.4, 0.0], [0.9, -0.4, 0.0], [0.9, 0.0, 0.4]]
LEARNING = Learning(Practical(3, 0.9), POLICY_KEY.public_key)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("node") is None or not (CLIENT / "node_modules").is_dir(),
        reason="needs node, and `make javascript`",
    ),
]


async def visits(url: str, digest: str, people: int) -> list[int]:
    script = CLIENT / "test" / "support" / "visit.js"
    node = await asyncio.create_subprocess_exec(
        *("node", script, url, digest, str(people), json.dumps(CONTEXTS)),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await asyncio.wait_for(node.communicate(), 600)
    arms: list[int] = json.loads(said)
    return arms


@pytest.mark.usefixtures("noiseless")
def test_devices_in_javascript_learn_from_each_other(tmp_path: Path) -> None:
    """Whom they learn from is chance, and what is best is plain: the services draw 0."""
    plan = plan_for_regret(400, 1, oh.Privacy(12.0, 1e-4), dimension=3, mechanism="pairs")
    lowest = plan.tree.lowest

    async def test(system: System) -> None:
        assert system.relay is not None
        listening = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        config = uvicorn.Config(system.shuffler, lifespan="off", log_level="warning")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listening]))
        first = await visits(url, system.document.digest, 8 * lowest)
        assert set(first) == {0, 1, 2}, "without a policy, any arm: else once in 10^12 runs"
        for _ in range(2):
            await system.publish()
            await system.relay.look()
            last = await visits(url, system.document.digest, 2 * lowest)
        assert last.count(0) > 0.8 * len(last)
        server.should_exit = True
        await serving
        # What was sent is what Python reads, and nobody else was there.
        learnt = system.publisher.lessons()
        assert learnt["policy"]["users"] == 10 * lowest
        reward, mean = learnt["reward"], first.count(0) / len(first)
        place = reward["t"].index(len(first))
        step = max(mechanism.quantizer.unit for mechanism in plan.mechanisms)
        assert abs(reward["value"][place] - mean) <= step, "nobody is rounded by more"

    run(tmp_path, test, plan=plan, learning=LEARNING)
