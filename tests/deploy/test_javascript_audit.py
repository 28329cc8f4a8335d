"""The noise of the JavaScript client, attacked as Python's is: messages go into the real store."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import overhand as oh
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import KeyPair
from overhand.lab.audit.attacks import Attacker
from overhand.lab.audit.audit import Claim, Finding, audit_game
from overhand.lab.audit.cases import Case
from overhand.lab.audit.deployed import ThroughStore
from overhand.model import Messages, Rows
from overhand.randomness import Random

CLIENT = Path(__file__).parents[2] / "clients" / "javascript"
CASE = Case("coins", oh.Bits(), levels=1, size=6, privacy=oh.Privacy(3.0, 0.01))
RUNS = 2000
RATE = 1e-9
"""How often what is right is accused, at most; by the law of the coins the fault is missed less."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::overhand.errors.WeakDelta"),
    pytest.mark.skipif(
        shutil.which("node") is None or not (CLIENT / "node_modules").is_dir(),
        reason="needs node, and `make javascript`",
    ),
]


@dataclass(frozen=True)
class FromNode(ThroughStore):
    """Users whose messages the JavaScript client makes, from the system's randomness."""

    is_faulty: bool = False

    def encode(self, rows: Rows, random: Random) -> list[Messages]:
        document = Document(self.plan, KeyPair.generate().public_key)
        lines = [json.dumps(document.to_json()), *map(str, rows.tolist())]
        made = subprocess.run(
            ["node", CLIENT / "test" / "support" / "encode.js", *["half"] * self.is_faulty],
            input="\n".join(lines).encode(),
            capture_output=True,
            check=True,
        )
        numbers = np.frombuffer(made.stdout, np.uint8)
        ends = np.cumsum([len(rows) * m.layout.messages_per_user for m in self.mechanisms])
        assert ends[-1] == len(numbers)
        return [Messages.of(level.reshape(len(rows), -1)) for level in np.split(numbers, ends[:-1])]


def attacked(*, is_faulty: bool) -> Finding:
    game = Attacker(FromNode(CASE.deployment().mechanisms, CASE.plan(), is_faulty))
    claim, random = Claim(CASE.privacy), oh.secure_random()
    return audit_game(CASE.name, game, claim, runs=RUNS, random=random, rate=RATE)


def test_the_coins_of_javascript_hold_what_the_plan_promises() -> None:
    found = attacked(is_faulty=False)
    assert not found.exceeds, found.best
    assert found.expected is not None
    assert found.epsilon > found.expected / 2  # the attack works at all


def test_half_the_coins_are_noticed() -> None:
    """Of the two coins that a user tosses, one shows the same always: about 5 instead of 3."""
    assert attacked(is_faulty=True).exceeds
