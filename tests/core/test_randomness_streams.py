"""Streams of chance: restored, spawned and forked, they go on or part as they must."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from overhand import randomness
from overhand.errors import InvalidValue
from overhand.randomness import (
    HALF,
    BinaryFraction,
    Random,
    SecureRandom,
    SeededRandom,
    restore_random,
    secure_random,
    secure_source,
    seeded_random,
    source_of,
)
from support.random_streams import STREAMS, UNSAFE, keyed
from support.sampling import assert_probability


def future(random: Random) -> list[Any]:
    """Some of everything that a stream can be asked for."""
    return [
        random.words(3, np.uint64).tolist(),
        random.coins(13, HALF).tolist(),
        random.coins(5, BinaryFraction(1, 3)).tolist(),
        random.binomial(100, BinaryFraction(1, 3), 3).tolist(),
        random.binomial(30_000, BinaryFraction(1, 3), 2).tolist(),
        random.permute(np.arange(10)).tolist(),
    ]


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("used", [0, 1, 17, 300_000], ids=lambda used: f"{used} bytes used")
def test_a_restored_stream_has_the_same_future(stream: str, used: int) -> None:
    random = STREAMS[stream](20230)
    random.words(used, np.uint8)
    restored = restore_random(random.state)
    assert type(restored) is type(random)
    assert future(restored) == future(random)
    assert future(restored) == future(random)


def test_a_fresh_secure_stream_can_be_restored() -> None:
    random = secure_random()
    future(random)
    assert future(restore_random(random.state)) == future(random)


def test_a_state_is_not_changed_by_what_is_drawn_after_it() -> None:
    for start in STREAMS.values():
        random = start(20230)
        state = random.state
        expected = future(random)
        assert future(restore_random(state)) == expected
        assert future(restore_random(state)) == expected


def test_a_restored_stream_spawns_the_children_it_would_have_had() -> None:
    random = seeded_random(5)
    random.spawn(2)
    restored = restore_random(random.state)
    assert [future(c) for c in restored.spawn(2)] == [future(c) for c in random.spawn(2)]


def test_the_same_seed_gives_the_same_stream_and_another_another() -> None:
    assert future(seeded_random(7)) == future(seeded_random(7))
    assert future(seeded_random(7)) != future(seeded_random(8))
    assert future(SeededRandom(np.random.default_rng(7))) == future(seeded_random(7))


def test_two_secure_streams_differ() -> None:
    assert future(secure_random()) != future(secure_random())


@pytest.mark.parametrize("stream", STREAMS)
def test_spawned_streams_differ_from_each_other_and_from_their_parent(stream: str) -> None:
    parent = STREAMS[stream](20230)
    families = [parent, *parent.spawn(3), *parent.spawn(2)]
    words = [tuple(member.words(4, np.uint64).tolist()) for member in families]
    assert len(set(words)) == len(families) == 6
    assert parent.spawn(0) == []


@pytest.mark.parametrize("stream", STREAMS)
def test_spawned_coins_agree_with_each_other_half_of_the_time(stream: str) -> None:
    first, second = STREAMS[stream](20230).spawn(2)
    agree = first.coins(20_000, HALF) == second.coins(20_000, HALF)
    assert_probability(int(agree.sum()), 20_000, 0.5, discrepancy=0.05)


def test_the_test_of_spawning_sees_one_stream_twice() -> None:
    agree = keyed(20230).coins(20_000, HALF) == keyed(20230).coins(20_000, HALF)
    with pytest.raises(AssertionError, match="successes"):
        assert_probability(int(agree.sum()), 20_000, 0.5, discrepancy=0.05)


def test_a_seed_fixes_the_spawned_streams_too() -> None:
    first, second = ([future(s) for s in seeded_random(5).spawn(2)] for _ in range(2))
    assert first == second


def test_restored_streams_of_different_seeds_spawn_different_streams() -> None:
    children = [restore_random(seeded_random(seed).state).spawn(1)[0] for seed in (5, 6)]
    assert future(children[0]) != future(children[1])


def test_a_restored_stream_spawns_no_stream_that_its_origin_spawned() -> None:
    origin = seeded_random(0)
    spawned = future(origin.spawn(1)[0])
    assert future(restore_random(origin.state).spawn(1)[0]) != spawned


def words_in_a_forked_child(streams: Sequence[Random]) -> list[bytes]:
    """The next words of each stream, drawn by a forked child and sent through a pipe."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(sending, b"".join(s.words(32, np.uint8).tobytes() for s in streams))
        finally:
            os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        words = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert len(words) == 32 * len(streams)
    return [words[start : start + 32] for start in range(0, len(words), 32)]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_repeat_the_streams_of_its_parent() -> None:
    streams = [secure_random(), keyed(20230), *secure_random().spawn(1)]
    streams[0].words(5, np.uint8)
    first, second = words_in_a_forked_child(streams), words_in_a_forked_child(streams)
    parent = [stream.words(32, np.uint8).tobytes() for stream in streams]
    assert len({*first, *second, *parent}) == 9


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_test_of_forking_sees_a_stream_that_is_copied() -> None:
    copied = seeded_random(20230)
    assert words_in_a_forked_child([copied]) == [copied.words(32, np.uint8).tobytes()]


def test_rekeying_gives_every_live_stream_a_new_key() -> None:
    """What the child does, in this process, where coverage can see it."""
    streams = [keyed(20230), keyed(20230), secure_random()]
    keys = {str(stream.state["key"]) for stream in streams}
    randomness._rekey_after_fork()
    states = [stream.state for stream in streams]
    assert {state["used"] for state in states} == {0}
    assert len(keys | {str(state["key"]) for state in states}) == 2 + 3


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_leaves_the_parent_s_stream_alone() -> None:
    random = keyed(20230)
    state = random.state
    words_in_a_forked_child([random])
    assert random.state == state


@pytest.mark.parametrize("seed", [True, False, -1, 1.0, "1", None, np.float64(1)], ids=repr)
def test_a_seed_that_is_none_is_refused(seed: Any) -> None:
    with pytest.raises(InvalidValue, match="seed"):
        seeded_random(seed)


@pytest.mark.parametrize("seed", [0, 2**200, np.int64(3)], ids=repr)
def test_any_natural_number_is_a_seed(seed: int) -> None:
    assert future(seeded_random(seed)) == future(seeded_random(int(seed)))


def test_a_secure_stream_takes_no_seed() -> None:
    with pytest.raises(TypeError):
        SecureRandom(1)  # type: ignore[call-arg]


# --- where noise comes from -----------------------------------------------------------------------


@pytest.mark.parametrize("source", [source_of, secure_source])
def test_noise_comes_from_the_operating_system_unless_told_otherwise(
    source: Callable[[Random | None], Random],
) -> None:
    one, other = source(None), source(None)
    assert type(one) is type(other) is SecureRandom
    assert future(one) != future(other)
    assert source(one) is one


def test_a_simulation_says_so_by_the_type_of_its_stream() -> None:
    seeded = seeded_random(1)
    assert source_of(seeded) is seeded
    with pytest.raises(InvalidValue, match="random is of type SeededRandom: deployed noise"):
        secure_source(seeded)


def refuses_what_is_unsafe(source: Callable[[Any], Random]) -> None:
    for name, random in UNSAFE.items():
        with pytest.raises(InvalidValue) as refusal:
            source(random)
        message = str(refusal.value)
        assert message.startswith(f"random is of type {name}: ")
        assert "OS randomness, which is the default" in message


@pytest.mark.parametrize("source", [source_of, secure_source])
def test_other_sources_are_refused_with_the_way_to_the_right_one(
    source: Callable[[Any], Random],
) -> None:
    refuses_what_is_unsafe(source)
    with pytest.raises(InvalidValue, match=r"simulation passes oh\.seeded_random\(seed\)"):
        source_of(42)  # type: ignore[arg-type]


def test_a_source_that_takes_whatever_it_is_given_would_be_caught() -> None:
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        refuses_what_is_unsafe(lambda random: SecureRandom() if random is None else random)
