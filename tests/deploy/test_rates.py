"""How often one address and one token may report."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from overhand.deploy.protocol.keys import hash_token
from overhand.deploy.shuffler import app
from overhand.deploy.shuffler import app as shuffler_app
from overhand.deploy.shuffler.app import Rate, address_key
from support.loopback_system import System
from support.raw_connections import HEALTH, Line, Port, Role, plan

CLIENT = "c" * 43


def test_a_rate_allows_a_burst_and_then_so_many_a_second() -> None:
    now = 100.0
    rate = Rate(2.0, clock=lambda: now)
    assert [rate.allows("one") for _ in range(25)] == [True] * 20 + [False] * 5
    assert rate.allows("another")
    now += 1.0
    assert [rate.allows("one") for _ in range(4)] == [True, True, False, False]
    now += 100.0
    assert sum(rate.allows("one") for _ in range(25)) == 20
    rate.forget()
    assert list(rate._used) == ["one"], "the other is forgotten"
    now += 10.0
    rate.forget()
    assert not rate._used
    assert all(Rate(0.0).allows("one") for _ in range(1000))


def test_no_more_are_known_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_MOST_KEYS", 100)
    rate = Rate(1.0)
    for key in range(1000):
        assert rate.allows(key)
        assert len(rate._used) <= 100
    assert list(rate._used) == list(range(900, 1000))


def test_an_address_is_a_host_or_a_network() -> None:
    assert address_key("192.0.2.1") != address_key("192.0.2.2")
    assert address_key("2001:db8::1") == address_key("2001:db8::ffff:1%eth0")
    assert address_key("2001:db8::1") != address_key("2001:db8:0:1::1")
    assert address_key("::ffff:192.0.2.1") == address_key("192.0.2.1")
    assert {address_key(here) for here in ("127.0.0.1", "::1", "::ffff:127.0.0.1", None)} == {None}


def test_senders_are_forgotten_though_nobody_comes_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reported last was in memory until somebody else reported."""
    monkeypatch.setattr(shuffler_app, "BURST", 0.01)
    now = 0.0

    async def until_forgotten() -> None:
        nonlocal now
        app, stopping = System(tmp_path, plan()).shuffler, asyncio.Event()
        app._per_address = app._per_token = rate = Rate(1.0, clock=lambda: now)
        forgetting = asyncio.create_task(app.forget_senders(stopping))
        rate.allows("192.0.2.1")
        await asyncio.sleep(0.03)
        assert rate._used
        now = 1.0
        async with asyncio.timeout(30):
            while rate._used:
                await asyncio.sleep(0.01)
            stopping.set()
            await forgetting

    asyncio.run(until_forgotten())


@pytest.mark.parametrize("by", ["address", "token"])
def test_who_reports_too_often_is_told_to_come_back(
    tmp_path: Path, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate = Rate(0.3, clock=lambda: 0.0)  # however slow the machine is
    if by == "address":
        system = System(tmp_path, plan())
        system.shuffler._per_address = rate
        monkeypatch.setattr(shuffler_app, "address_key", lambda address: "from " + address)
    else:
        system = System(tmp_path, plan(), frozenset([hash_token(CLIENT)]))
        system.shuffler._per_token = rate
    role = Role(system, is_shuffler=True)
    body = b"OVH3" + bytes(system.document.formats.report_length - 4)  # of another plan
    token = f"authorization: Bearer {CLIENT}\r\n".encode()

    async def asked(line: Line, *more: bytes) -> int:
        line.say(role.upload, token, *more)
        return (await line.answer())[0]

    async def often(port: Port) -> None:
        length = f"content-length: {len(body)}\r\n\r\n".encode()
        chunked = b"transfer-encoding: chunked\r\n\r\n"
        async with port.line() as line, port.line() as other:
            for _ in range(3):
                assert await asked(line, length, body) == 409
            for late, more in ((line, length), (other, chunked)):  # before the body
                assert await asked(late, more) == 429
                assert int(late.headers["retry-after"]) > 0
                assert late.headers["connection"] == "close"
        async with port.line() as line:
            line.say(HEALTH, b"\r\n")
            assert (await line.answer())[0] == 200

    role.serve(often)
