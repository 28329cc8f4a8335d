"""A client by docs/protocol.md that shares no code: it makes the vectors, and is counted."""

from __future__ import annotations

import ast
import asyncio
import hashlib
import json
import re
import secrets
import struct
from collections import deque
from contextlib import closing
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.exceptions import InvalidSignature

from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import hash_token
from overhand.deploy.protocol.sealing import Opener, open_release
from overhand.deploy.protocol.wire import Batch, Release
from overhand.deploy.shuffler.app import Admission, ShufflerApp
from overhand.deploy.shuffler.batching import OwnNoise
from overhand.deploy.shuffler.store import Store
from overhand.noise.tables import polya_thresholds
from overhand.randomness import BinaryFraction
from support import second_client
from support.asgi import AsgiTransport
from support.second_client import Draws, Part, Refused, SecondClient, kind_of, polya
from support.vector_documents import KEY, documents
from support.vectors import FOLDER, ephemeral_material

RECOMMENDER = json.loads((FOLDER / "recommender.json").read_text(encoding="utf-8"))
REPORTS = json.loads((FOLDER / "reports.json").read_text(encoding="utf-8"))
OFFERS = json.loads((FOLDER / "offers.json").read_text(encoding="utf-8"))
PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")


def client_of(name: str) -> SecondClient:
    document = documents()[name][1]
    return SecondClient(document.to_json().encode(), document.digest)


class Written(Draws):
    """What a vector says was drawn, in the order in which it is asked for."""

    def __init__(self, level: dict[str, Any]) -> None:
        self._rounding = deque(int(one) for one in level["rounding"])
        self._coins = deque(level.get("coins", []))
        self._noise = deque(level.get("noise", []))
        self._shares = deque(int(one) for row in level.get("free_shares", []) for one in row)
        self._seed = bytes.fromhex(level.get("seed", ""))

    def rounding(self) -> int:
        return self._rounding.popleft()

    def coins(self, noise: dict[str, Any]) -> list[int]:
        found: list[int] = self._coins.popleft()
        return found

    def noise(self, noise: dict[str, Any]) -> int:
        return int(self._noise.popleft())

    def share(self, bits: int) -> int:
        return self._shares.popleft()

    def seed(self) -> bytes:
        return self._seed

    @property
    def is_used_up(self) -> bool:
        return not (self._rounding or self._coins or self._noise or self._shares)


def test_the_second_client_has_nothing_of_ours() -> None:
    """Or it would prove nothing; `support.hpke` has only primitives."""
    for name in ("second_client.py", "hpke.py"):
        tree = ast.parse((Path(second_client.__file__).parent / name).read_text())
        modules = {
            name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in (
                [node.module or ""] if isinstance(node, ast.ImportFrom) else map(_name, node.names)
            )
        }
        assert modules
        assert not [m for m in modules if m.startswith(("overhand", "numpy", "support.vector"))]


def _name(alias: ast.alias) -> str:
    return alias.name


@pytest.mark.parametrize("name", documents())
def test_the_second_client_makes_the_reports_of_the_vectors(name: str) -> None:
    client, found = client_of(name), [one for one in REPORTS if one["document"] == name]
    assert len(found) >= 2
    for one in found:
        check_report(client, one, one["value"])


def check_report(client: SecondClient, one: dict[str, Any], value: Any) -> None:
    parts = list[Part]()
    for level in one["levels"]:
        draws = Written(level)
        part = client.encoded(level["level"], value, draws)
        assert [message.hex() for message in part.messages] == level["messages"]
        assert [str(number) for number in part.clear] == level["clear"]
        assert draws.is_used_up
        parts.append(part)
    ephemeral = partial(_material, [bytes.fromhex(level["ephemeral"]) for level in one["levels"]])
    report = client.framed(parts, bytes.fromhex(one["id"]), ephemeral)
    assert hashlib.sha256(report).hexdigest() == one["report_sha256"]


def test_the_second_client_takes_the_arms_of_the_vectors_and_reports_of_them() -> None:
    of = {
        one["name"]: SecondClient(one["text"].encode(), one["digest"])
        for one in RECOMMENDER["documents"]
    }
    for one in RECOMMENDER["choices"]:
        policy = RECOMMENDER["policies"][one["policy"]]["text"]
        assert of[one["document"]].arm(policy, one["contexts"]) == one["arm"]
    for one in RECOMMENDER["reports"]:
        client = of[one["document"]]
        check_report(client, one, client.moments(one["features"], one["reward"]))
    for one in RECOMMENDER["refused_policies"]:
        if one["after"] is None:
            with pytest.raises(
                (ValueError, LookupError, TypeError, InvalidSignature, struct.error)
            ):
                of[one["document"]].arm(one["text"], [[0.9, 0.0, 0.0]])


def _material(keys: list[bytes], level: int, place: int) -> bytes:
    return ephemeral_material(keys[level - 1], place)


class Noted(Draws):
    """Remembers what it added to a bit, of coins or of Laplace noise."""

    def __init__(self, noted: list[int]) -> None:
        self._noted = noted

    def coins(self, noise: dict[str, Any]) -> list[int]:
        drawn = super().coins(noise)
        self._noted.append(sum(drawn))
        return drawn

    def noise(self, noise: dict[str, Any]) -> int:
        drawn = super().noise(noise)
        self._noted.append(drawn)
        return drawn


USERS = 40
NAMES = [
    "coins-bit",
    "pairs-bit",
    "ballots-bit",
    pytest.param("shares-bit", marks=pytest.mark.slow),
]


async def _sent(document: Document, store: Store, reports: list[bytes]) -> None:
    """Through the service as it is deployed, each of them twice: a repeat counts once."""
    admission = Admission(store)
    app = ShufflerApp(document, admission, tokens={hash_token(f"{i}") for i in range(USERS)})
    running = asyncio.create_task(admission.run())
    for user, report in enumerate(reports):
        transport = AsgiTransport(app, str(user))
        for _ in range(2):
            answer = await transport.request("POST", "/v1/reports", report)
            assert (answer.status, answer.body) == (200, b'{"status": "counted"}')
        await transport.close()
    admission.close()
    await running


@pytest.mark.parametrize("name", NAMES)
def test_reports_of_the_second_client_are_counted(name: str, tmp_path: Path) -> None:
    """The sums are exactly those of the values and of what was drawn for noise."""
    client, document = client_of(name), documents()[name][1]
    of_services = document.plan.noise_by == "services"
    drawn: dict[int, list[int]] = {level.level: [] for level in document.formats.levels}
    values, reports = [int(user % 3 == 0) for user in range(USERS)], []
    for user, value in enumerate(values):
        parts = [client.encoded(level, value, Noted(noted)) for level, noted in drawn.items()]
        ephemeral = partial(_material, [secrets.token_bytes(32) for _ in drawn])
        reports.append(client.framed(parts, user.to_bytes(16, "big"), ephemeral))
    noise = OwnNoise(document) if of_services else None
    with closing(Store(tmp_path / "s.db", document.formats, noise=noise)) as store:
        asyncio.run(_sent(document, store, reports))
        assert store.arrived == USERS
        found = _offered(document, store) if name == "pairs-bit" else _released(document, store)
    assert len(found) == (4 if of_services else 4 + 1)
    for (level, number), total in found.items():
        size = document.formats.level(level).size
        users = slice(number * size, (number + 1) * size)
        due = sum(values[users]) + sum(drawn[level][users])
        if of_services:  # with the shuffling service's noise, which for ballots is moved
            moved = 20 if name == "ballots-bit" else 0
            assert abs(total - moved - due) <= 40, "noise goes beyond with probability 2^-80"
        else:
            assert total == due


def _released(document: Document, store: Store) -> dict[Batch, int]:
    opener, totals = Opener(KEY, document.formats.digest), {}
    for release in store.freeze_all(store.unfrozen()):
        assert isinstance(release, Release)
        shuffled, garbage = open_release(document.formats, release, opener)
        assert garbage == 0
        mechanism = document.mechanisms[release.batch.level - 1]
        totals[release.batch] = int(mechanism.step_sums(shuffled)[0, 0])
    return totals


def _offered(document: Document, store: Store) -> dict[Batch, int]:
    """The server's half by the page: it opens the seeds, and adds up the masks."""
    formats, opener, masks = document.formats, Opener(KEY, document.formats.digest), {}
    answers, client = {}, client_of("pairs-bit")
    for offer in store.offer_all(store.unoffered()):
        sealed = [offer.body[i : i + 64] for i in range(0, len(offer.body), 64)]
        seeds = [seed or b"" for seed in opener.open(1, sealed)]
        masks[offer.batch] = sum(client.masks(1, seed, 16, 1)[0] for seed in seeds)
        answers[offer.batch] = b"OVA3" + hashlib.sha256(formats.pack(offer)).digest()
    totals = {}
    for one in store.answer_all(answers):
        total = masks[one.batch] + int.from_bytes(one.body, "little") & 0xFFFF
        totals[one.batch] = total - (total >> 15 << 16)  # noise may be below 0
    return totals


def test_offers_answers_and_sums_are_those_of_the_page() -> None:
    for one in OFFERS:
        client = client_of(one["document"])
        (mechanism,) = client.plan["mechanisms"]
        place = client.digest + struct.pack(">BQI", one["level"], one["batch"], one["own"])
        users, bits = mechanism["size"] - one["own"], mechanism["modulus_bits"]
        offer, answer = bytes.fromhex(one["offer"]), bytes.fromhex(one["answer"])
        assert offer[: -64 * users] == b"OVO3" + place
        positions = struct.pack(f">{len(one['refused'])}I", *one["refused"])
        assert answer == b"OVA3" + hashlib.sha256(offer).digest() + positions
        rows = [row for i, row in enumerate(one["masked"]) if i not in one["refused"]]
        total = [sum(map(int, column)) for column in zip(*rows, one["noise"], strict=True)]
        clear = [number % (1 << bits) for number in total]
        assert list(map(str, clear)) == one["clear"]
        packed = b"".join(number.to_bytes((bits + 7) // 8, "little") for number in clear)
        due = b"OVS3" + place + hashlib.sha256(answer).digest() + packed
        assert due == bytes.fromhex(one["sum"])


def test_a_document_that_is_not_pinned_and_a_value_that_is_none_are_refused() -> None:
    text = documents()["coins-bit"][1].to_json().encode()
    with pytest.raises(Refused):
        SecondClient(text, "00" * 32)
    for name, value in [
        ("coins-bit", 2),
        ("pairs-real", float("nan")),
        ("pairs-vector", [2, 0, 0]),
    ]:
        with pytest.raises(Refused):
            client_of(name).report(value)


@pytest.mark.parametrize(
    ("spec", "value", "point"),
    [
        ("histogram:like,love,wow", "love", [0, 1, 0]),
        ("histogram:like,love:any other", "wow", [0, 0, 1]),
        ("binned:0.0:10.0:4", 2.5, [0, 1, 0, 0]),
        ("binned:0.0:10.0:4", 10.0, [0, 0, 0, 1]),
        ("binned:0.0,1.0,100.0", 0.99, [1, 0]),
        ("grouped:DE,FR:real:10.0:50.0", ("FR", 20.0), [0, 0.25, 0, 0.75]),
        ("grouped:DE,FR:any other:bit", ("IT", 0), [0, 0, 0, 0, 0, 1]),
    ],
)
def test_kinds_that_are_made_of_others(spec: str, value: Any, point: list[float]) -> None:
    assert kind_of(spec, clip=False).point(value) == point


@pytest.mark.parametrize("name", documents())
def test_a_report_has_the_length_that_the_document_says(name: str) -> None:
    kind, document = documents()[name]
    assert len(client_of(name).report(kind.values[-1])) == document.formats.report_length


def test_the_second_ways_of_drawing_have_the_laws_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tables agree to the last bits that matter; a coin is 1 for exactly its part of all words."""
    for shape, ratio in [((1, 10), 0.25), ((1, 40), 0.75), ((3, 1), 0.9)]:
        fraction = Fraction(*shape)
        table = polya_thresholds(fraction, ratio)
        ours = [int(h) << 64 | int(low) for h, low in zip(table._high, table._low, strict=True)]
        theirs = polya(fraction, ratio)
        assert len(ours) == len(theirs)
        assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) <= 1
    words: list[int] = []
    monkeypatch.setattr("secrets.randbits", lambda count: words.pop(0))
    shown = 0
    for word in range(16):
        words[:] = [word >> place & 1 for place in (3, 2, 1, 0)]
        coin = Draws().coin(5, 4)
        shown += coin
        assert coin == (word < 5)
    assert shown == 5 == 16 * float(BinaryFraction(5, 4))


def test_the_page_shows_a_document_as_it_is() -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert shown == documents()["coins-bit"][1].to_json()


def test_the_page_names_everything_that_a_document_may_have() -> None:
    """A field that is added and not written down cannot be implemented."""

    def names(content: Any) -> set[str]:
        if isinstance(content, dict):
            return set(content).union(*map(names, content.values()))
        return set().union(*map(names, content)) if isinstance(content, list) else set()

    of_recommenders = [json.loads(one["text"]) for one in RECOMMENDER["documents"]]
    of_recommenders = [
        one | {"learning": one["learning"] | {"arms": {}}} for one in of_recommenders
    ]
    contents = [json.loads(document.to_json()) for _, document in documents().values()]
    contents += [*of_recommenders, json.loads(RECOMMENDER["policies"][0]["text"])]
    said = names(contents)
    assert said
    assert not {name for name in said if f"`{name}`" not in PAGE and f'"{name}"' not in PAGE}
    assert not {d.plan.values.spec.split(":")[0] for _, d in documents().values()} - {
        word for word in re.findall(r"`(\w+)[:`]", PAGE)
    }


def test_numbers_in_numpy_are_those_of_the_page() -> None:
    """The bounds of moments, which the page has in words."""
    for name in ("pairs-regression", "pairs-matrix", "pairs-real"):
        values, kind = documents()[name][1].plan.values, client_of(name).kind
        assert np.array_equal(values.lows, kind.lows)
        assert np.array_equal(values.highs, kind.highs)
