"""Noise that the services make, attacked from both sides, and faults of either that are caught.

Most games are simulations with a fixed seed. Deployed services draw from the system: there what is
right is accused with probability 1e-9, and a fault is missed about as rarely, by the law of the
noise.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy import stats

import overhand as oh
from overhand.accounting import gaussian_delta
from overhand.deploy.protocol.document import Document
from overhand.lab import audit
from overhand.lab.audit import Scope
from overhand.lab.audit.attacks import Attacker
from overhand.lab.audit.audit import (
    Claim,
    Finding,
    Game,
    _bound_spread,
    audit_game,
    bounding_runs,
    expected_mu,
    find_noticed_part,
    rate_of_each,
)
from overhand.lab.audit.blocks import (
    AFTER,
    BLOCK_FAULTS,
    LEAK_FACTOR,
    Filter,
    Liar,
    Placement,
    ServicesFault,
    Silent,
    WatchedBlocks,
    with_noise_of,
)
from overhand.lab.audit.cases import SERVICES_KINDS, VALUES, Case, can_send
from overhand.lab.audit.deployed import (
    SERVER_FAULTS,
    STORE_FAULTS,
    STORE_LIED_FAULTS,
    WINDOW,
    AnsweredAgain,
    DrawnAgain,
    ForgottenMarks,
    LiedTo,
    LiftedFirst,
    LyingServer,
    LyingService,
    MovedToEdge,
    Replayed,
    RestoredDatabase,
    SubstitutedKey,
    ThroughStore,
)
from overhand.lab.audit.lattice import BLOCKS, LATTICE_FAULTS, LatticeAttack
from overhand.mechanisms import PairsSum
from overhand.model import Privacy
from overhand.noise import CorrelatedNoise, IndependentNoise
from overhand.randomness import seeded_random
from overhand.values import values_of
from support.cli_runner import as_json, overhand, rows_that_hold

CLAIM = Privacy(1.0, 0.01)
RATE = 1e-9
SIDES: tuple[Liar, ...] = ("server", "service")
MISSING = 0.97
"""The part of sigma that is left where a fault is hardest to see."""
ENOUGH = 80_000
"""Runs that see it: see `test_so_many_runs_see_three_percent_of_sigma`."""


def case_of(kind: str, spec: str = "bit", size: int = 8, reports: int = 1) -> Case:
    return Case(kind, values_of(spec), 1, size, CLAIM, reports)


def found(game: Any, runs: int, claim: Claim | None = None) -> Finding:
    """With the claim that goes with the game, if there is no other."""
    of_game = game.claim if claim is None else claim
    return audit_game("tested", game, of_game, runs=runs, random=seeded_random(1), rate=RATE)


def separation(game: Game, runs: int, name: str) -> float:
    """By how many standard deviations a statistic moves with the victim's value."""
    random = seeded_random(5)
    zero, one = (game.play(v, runs, random, 0)[game.names.index(name)] for v in (0, 1))
    return float((one.mean() - zero.mean()) / np.sqrt((one.var() + zero.var()) / 2))


# What judges.


def test_so_many_runs_see_three_percent_of_sigma() -> None:
    """By the law of the sample variance alone: neither a right nor a wrong one is mistaken."""
    game = WatchedBlocks.of(case_of("ballots").plan())
    share = rate_of_each(game, game.claim, RATE)
    degrees = 2 * (bounding_runs(ENOUGH) - 1)
    accused_below = stats.chi2.ppf(share / 2, degrees)
    assert stats.chi2.sf(accused_below / MISSING**2, degrees) < RATE
    assert stats.chi2.cdf(accused_below, degrees) < RATE


def test_variances_are_bounded_as_promised() -> None:
    """The interval misses what is planned exactly where the law says, on either side."""
    rate, runs = 1e-3, 40
    unit = np.stack([np.linspace(-1, 1, runs), np.linspace(4, 6, runs)])
    unit = (unit - unit.mean(axis=1, keepdims=True)) / np.sqrt(runs * unit.var(axis=1).sum())
    degrees = 2 * (runs - 1)
    edges = stats.chi2.isf(rate / 2, degrees), stats.chi2.ppf(rate / 2, degrees)
    for square, is_right in zip(np.outer(edges, [0.999, 1.001]).ravel(), (1, 0, 0, 1), strict=True):
        bound = _bound_spread("any", np.sqrt(3 * square) * unit, 3.0, rate)
        assert bound.is_right == bool(is_right)


def test_of_gaussian_noise_the_noticed_part_is_where_a_bound_meets_what_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That of its variance; and where nothing is said of that, the bound on mu."""
    game, runs, rate = WatchedBlocks.of(case_of("pairs").plan()), 45_000, 1e-5
    degrees = 2 * (runs - 1)
    part = find_noticed_part(game, game.claim, runs=runs, rate=rate)
    assert part == pytest.approx(stats.chi2.ppf(rate / 2, degrees) / degrees, abs=1e-3)
    monkeypatch.setattr(WatchedBlocks, "spreads", {})
    part = find_noticed_part(game, game.claim, runs=runs, rate=rate)
    assert part is not None
    assert game.expected_mu is not None
    below, above = (
        expected_mu(game.expected_mu / (part + more) ** 0.5, runs, slack=0.0, rate=rate)
        for more in (-0.01, 0.01)
    )
    assert game.claim.mu is not None
    assert below > game.claim.mu > above


def test_what_follows_from_a_leak_is_claimed_of_it() -> None:
    plan = case_of("ballots").plan()
    plain, leaked = (WatchedBlocks.of(plan, leak=leak).claim for leak in ("", "after"))
    assert (plain.privacy, plain.mu) == (plan.privacy, plan.mu)
    assert leaked.mu == pytest.approx(LEAK_FACTOR**0.5 * plan.mu)
    spent = gaussian_delta(leaked.mu, leaked.privacy.epsilon) + leaked.slack  # type: ignore[arg-type]
    assert spent == pytest.approx(CLAIM.delta)


# What one service sees of the other's noise.


def test_the_filter_is_what_the_rotations_do() -> None:
    """In floats as in whole numbers, but for their rounding: registers, and the noise drawn."""
    noise = case_of("pairs").plan().mechanisms[0].noise_share
    assert isinstance(noise, CorrelatedNoise)
    chain, random, blocks = Filter(noise), seeded_random(3), 20
    start = noise.start(random, 1)
    kept, forgotten = noise._samplers[0].draw(random, 2 * blocks).reshape(2, blocks, 1)
    no_offsets = np.zeros((blocks, 3 * len(start)), np.int64)
    rows, after = noise._move(start, kept, forgotten, no_offsets, None, at_once=True)
    state = start[:, 0].astype(float)
    for n, m, drawn in zip(kept[:, 0], forgotten[:, 0], rows[:, 0], strict=True):
        signal = chain.h @ state + chain.through * n + m
        assert abs(signal / noise.step - drawn) <= 0.5 + 1e-9
        state = chain.a @ state + chain.kept * n + chain.gains * drawn
    assert np.abs(state - after[:, 0]).max() < 2.0**-40 * noise._samplers[0].deviation
    own, before = chain.registers(np.eye(3)[:1].T), chain.registers(np.ones((1, 1)))
    assert own[:, 0] == pytest.approx(chain.a @ chain.a @ before[:, 0])
    norms = (chain.column(6000) ** 2).sum()
    assert norms == pytest.approx(float(noise.square_norm), rel=1e-6)


@pytest.mark.parametrize("reports", [1, 2])
@pytest.mark.parametrize("kind", SERVICES_KINDS)
def test_the_attack_comes_close_to_what_is_claimed_and_never_beyond(
    kind: str, reports: int
) -> None:
    """By law, wherever a person's reports are; noise for one of two, the mutant, is too little."""
    plan, single = case_of(kind, reports=reports).plan(), case_of(kind).plan()
    for placement in {Placement(reports, 1), Placement(1, reports)}:
        right = WatchedBlocks.of(plan, placement=placement)
        assert plan.mu is not None
        assert right.expected_mu is not None
        assert 0.85 * plan.mu < right.expected_mu <= plan.mu
        wrong = WatchedBlocks.of(single, placement=placement)
        assert reports == 1 or wrong.expected_mu > 1.7 * plan.mu  # type: ignore[operator]


@pytest.mark.parametrize("leak", ["", "before", "after"])
@pytest.mark.parametrize("kind", SERVICES_KINDS)
def test_what_is_seen_is_what_the_law_lets_expect(kind: str, leak: Any) -> None:
    """And so the attack is no weak one: within 0.05 (five standard errors) of the best there is."""
    game = WatchedBlocks.of(case_of(kind).plan(), leak=leak)
    name = "state" if leak else "filtered"
    assert game.expected_mu is not None
    assert game.expected_mu <= game.claim.mu  # type: ignore[operator]
    assert separation(game, 20_000, name) == pytest.approx(game.expected_mu, abs=0.05)


@pytest.mark.parametrize("spec", VALUES)
@pytest.mark.parametrize("kind", SERVICES_KINDS)
def test_what_one_service_sees_keeps_the_claim(kind: str, spec: str) -> None:
    """Epsilon and mu, of the same noise from either side: what is sent hides nothing more."""
    if not can_send(kind, values_of(spec)):
        assert kind == "ballots"
        return
    games = [WatchedBlocks.of(case_of(kind, spec).plan(), liar=liar) for liar in SIDES]
    findings = [found(game, 4000) for game in games]
    for finding in findings:
        assert not finding.exceeds
        assert finding.epsilon <= CLAIM.epsilon
        assert finding.claim.mu is not None
        assert finding.mu <= finding.claim.mu
    server, service = findings
    assert server.shown == service.shown
    # The attack is no weak one: a standard error is 0.02.
    assert separation(games[0], 4000, "filtered") == pytest.approx(games[0].expected_mu, abs=0.1)


@pytest.mark.parametrize(
    ("kind", "liar"),
    [
        ("ballots", "service"),
        pytest.param("ballots", "server", marks=pytest.mark.slow),
        pytest.param("pairs", "server", marks=pytest.mark.slow),
        pytest.param("pairs", "service", marks=pytest.mark.slow),
    ],
)
def test_three_percent_of_sigma_are_missed_and_no_less(kind: str, liar: Liar) -> None:
    """Noise of 0.97 sigma is accused by its variance, long before it shows a mu above the claim."""
    right = WatchedBlocks.of(case_of(kind).plan(), liar=liar)
    planted = replace(right, mechanism=right.mechanism.reduce(MISSING**2))
    finding, accused = found(right, ENOUGH), found(planted, ENOUGH)
    assert not finding.exceeds
    assert accused.exceeds
    filtered = accused.wrong_spreads[0]
    assert filtered.statistic == "filtered"
    assert filtered.low < MISSING**2 < filtered.high < 1
    for one in (finding, accused):  # neither shows more than is claimed
        assert one.mu <= one.claim.mu  # type: ignore[operator]
        assert one.epsilon <= CLAIM.epsilon
        assert one.epsilon == pytest.approx(one.expected, abs=0.2)


@pytest.mark.parametrize("leak", ["before", "after"])
@pytest.mark.parametrize("kind", [pytest.param("pairs", marks=pytest.mark.slow), "ballots"])
def test_a_leak_of_the_state_costs_no_more_than_is_said(kind: str, leak: Any) -> None:
    """Of a user before it or after it; that it costs nothing, the mutant, is refuted."""
    game = WatchedBlocks.of(case_of(kind).plan(), leak=leak)
    assert not found(game, 24_000).exceeds
    refuted = found(game, 24_000, WatchedBlocks.of(game.plan).claim)
    assert refuted.exceeds or leak == "after"
    assert refuted.mu > 0.8 * refuted.claim.mu  # type: ignore[operator]


def test_independent_noise_is_attacked_too() -> None:
    """Of a tiny plan: there is no state, no mu, and no variance of a Gaussian."""
    plan = oh.Plan.best(2, epsilon=1.0, delta=0.01, mechanism="pairs")
    assert isinstance(plan.mechanisms[0].noise_share, IndependentNoise)
    game = WatchedBlocks.of(plan)
    assert (game.claim, game.expected_mu, game.spreads) == (Claim(CLAIM), None, {})
    right = found(game, 8000)
    assert not right.exceeds
    assert right.epsilon > 0.5
    planted = replace(game, mechanism=game.mechanism.reduce(0.25))
    assert found(planted, 8000).exceeds


SEEN_BY = {
    "half the variance": "variance",
    "no noise": "variance",
    "plain buffers": "state",
    "state not advanced": "variance",
    "increments rounded": "variance",
    "a message in two blocks": "filtered",
    "noise for one report": "filtered",
    "clipping not charged": "block",
}
PLANTED = [
    pytest.param(
        kind,
        name,
        id=f"{kind}: {name}",
        marks=[] if kind == "ballots" else [pytest.mark.slow],
    )
    for kind in SERVICES_KINDS
    for name, fault in BLOCK_FAULTS.items()
    if fault.concerns(case_of(kind).plan())
]


def test_there_is_a_mutant_for_every_fault_of_blocks() -> None:
    assert set(SEEN_BY) == set(BLOCK_FAULTS)
    assert len(PLANTED) == 2 * len(BLOCK_FAULTS) - 1  # clipping is for ballots


@pytest.mark.parametrize(("kind", "fault"), PLANTED)
def test_every_fault_of_blocks_is_caught(kind: str, fault: str) -> None:
    game = BLOCK_FAULTS[fault].of(case_of(kind).plan())
    finding, seen_by = found(game, 12_000), SEEN_BY[fault]
    assert finding.exceeds
    assert finding.claim.mu is not None
    if seen_by == "variance":
        assert finding.wrong_spreads
        return
    assert finding.mu > finding.claim.mu
    assert finding.epsilon > finding.claim.privacy.epsilon or fault.startswith("a message")
    assert finding.best.event.startswith(seen_by)
    if seen_by == "state":  # and by nothing else, for every block is as it should be
        assert finding.wrong_spreads == []
        rest = [shown for shown in finding.shown if not shown.event.startswith("state")]
        assert max(shown.mu for shown in rest) <= finding.claim.mu


# The bits of a state.


@pytest.mark.parametrize(
    "blocks", [t if t in (1, 3) else pytest.param(t, marks=pytest.mark.slow) for t in BLOCKS]
)
@pytest.mark.parametrize("kind", [pytest.param("ballots", marks=pytest.mark.slow), "pairs"])
def test_stored_bits_tell_no_more_than_is_claimed_and_coarse_draws_all(
    kind: str, blocks: int
) -> None:
    plan, coarse = case_of(kind).plan(), LATTICE_FAULTS[f"coarse draws, {blocks}"]
    finding = found(LatticeAttack.of(plan, blocks=blocks), 1000)
    planted = found(coarse.of(plan), 1000)
    assert not finding.exceeds
    assert planted.exceeds
    assert planted.mu > 2 * planted.claim.mu  # type: ignore[operator]
    assert planted.best.event.startswith("coarse lattice")


def test_the_lattice_attack_reads_more_than_sums_do() -> None:
    """It is no weak one: nearly what a leak of the state after the victim's block may show."""
    plan = case_of("pairs").plan()
    best = WatchedBlocks.of(plan, leak="after").expected_mu
    assert best is not None
    shown = separation(LatticeAttack.of(plan, blocks=1), 4000, "lattice")
    assert 0.9 * best < shown < best + 0.12  # a standard error is 0.023


# The deployed services.


def quiet(lie: type[LiedTo], kind: str) -> LiedTo:
    """To a service that has no noise."""
    game = ServicesFault(lie, partial(with_noise_of, Silent)).of(case_of(kind).plan())
    assert isinstance(game, lie)
    return game


@pytest.mark.parametrize("lie", [LyingService, LyingServer])
@pytest.mark.parametrize("kind", SERVICES_KINDS)
def test_what_hides_a_victim_is_the_other_services_noise_alone(
    kind: str, lie: type[LiedTo]
) -> None:
    """Without that noise the attack reads every victim: it is no weak one."""
    right, silent = lie.of(case_of(kind).plan()), quiet(lie, kind)
    for victim in (0, 1):
        read, block, *_ = silent.play(victim, 5, seeded_random(2), attempt=0)
        assert np.array_equal(block, np.full(5, victim))
        noise = silent.plan.mechanisms[0].noise_share
        assert isinstance(noise, CorrelatedNoise)
        column = Filter(noise).column(WINDOW)
        assert read == pytest.approx(np.full(5, victim * column @ column))
        noisy = right.play(victim, 20, seeded_random(2), attempt=0)[0]
        assert len(set(noisy.round(6))) > 3


@pytest.mark.parametrize("kind", SERVICES_KINDS)
def test_a_message_that_is_sent_again_does_not_count_again(kind: str) -> None:
    """Without noise it is exact; to a server that knows none again, the mutant, it counts."""
    once, again = (quiet(lie, kind) for lie in (Replayed, ForgottenMarks))
    for victim in (0, 1):
        sums = [game._watch(_bits(victim), seeded_random(2))[0] for game in (once, again)]
        assert np.array_equal(sums[0], _bits(victim))
        assert np.array_equal(sums[1], np.repeat(_bits(victim)[::WINDOW], WINDOW))


def _bits(victim: int) -> Any:
    bits = np.zeros(3 * WINDOW, np.uint8)
    bits[::WINDOW] = victim
    return bits


@pytest.mark.parametrize("kind", SERVICES_KINDS)
def test_a_service_that_is_asked_again_says_the_same(kind: str) -> None:
    """However often, and about whatever part of a block: then sums of answers tell no more."""
    game = LyingServer.of(case_of(kind).plan())
    _, block, again, _ = game.play(1, 40, seeded_random(2), attempt=0)
    times = again[block != 0] / block[block != 0]
    assert set(times) == {times[0]}
    assert times[0] > 10


def test_a_second_answer_about_an_offer_is_seen() -> None:
    """Two subsets of a block, less each other, are the victim; and noise drawn again adds up."""
    second, redrawn = (lie.of(case_of("pairs").plan()) for lie in (AnsweredAgain, DrawnAgain))
    for victim in (0, 1):
        *_, subsets = second.play(victim, 20, seeded_random(2), attempt=0)
        assert np.array_equal(subsets, np.full(20, victim))
    _, block, again, _ = redrawn.play(1, 20, seeded_random(2), attempt=0)
    assert len(set((again / np.where(block == 0, 1, block)).round(6))) > 3


def test_noise_after_lifting_is_right_until_somebody_lies() -> None:
    """Sums of honest batches are what they should be: only the edge of the range tells."""
    (right,) = case_of("pairs").mechanisms
    assert isinstance(right, PairsSum)
    planted = LiftedFirst.of_entry(right.entry(), right.noise_share, right.values)
    residues, noise = np.arange(9, dtype=np.uint64)[:, np.newaxis], np.full((9, 1), -3)
    assert np.array_equal(planted._lift(residues, noise), right._lift(residues, noise))
    game = SERVER_FAULTS["noise after lifting"].of(case_of("pairs").plan())
    for victim in (0, 1):
        *_, wrapped = game.play(victim, 20, seeded_random(5), attempt=0)
        assert np.array_equal(wrapped, np.full(20, victim))
    *_, wrapped = MovedToEdge.of(case_of("pairs").plan()).play(1, 60, seeded_random(5), attempt=0)
    assert set(wrapped) == {0, 1}  # all alike in fewer than one of 10^9 runs


def test_alarms_that_lies_raise_are_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every sum at the edge of its range raises one: thousands in an audit."""
    logger = logging.getLogger("overhand.deploy")
    monkeypatch.setattr(logger, "propagate", False)  # as if nobody had set up any logs
    monkeypatch.setattr(logger, "handlers", [])
    MovedToEdge.of(case_of("pairs").plan()).play(1, 2, seeded_random(2), attempt=0)
    assert capsys.readouterr().err == ""


def test_noise_that_is_drawn_again_is_in_no_single_publication(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One publication tells what one life of the database does; all tell what all do.

    By chance, two lives publish the same 40 sums once in 10^12 runs at most.
    """
    publish, lives = LyingService._publish, list[Any]()

    def keep(game: LyingService, *asked: Any) -> Any:
        lives.append(publish(game, *asked))
        return lives[-1]

    monkeypatch.setattr(LyingService, "_publish", keep)
    monkeypatch.setattr(RestoredDatabase, "lives", 3)
    game = RestoredDatabase.of(case_of("ballots").plan())
    _, block, added = game.play(1, 40, seeded_random(3), attempt=0)
    assert len(lives) == 3
    assert all((one != other).any() for one, other in itertools.combinations(lives, 2))
    assert np.array_equal(block, lives[0])
    bits = np.ones(40)
    assert added == pytest.approx(sum(game._filtered(one, bits) for one in lives))


LIES = {"service": LyingService, "replayed": Replayed, "edge": MovedToEdge, "server": LyingServer}


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("kind", SERVICES_KINDS)
def test_a_service_that_lies_learns_no_more_than_is_claimed(kind: str, lie: str) -> None:
    if not LIES[lie].concerns(case_of(kind).plan()):
        assert (kind, lie) == ("ballots", "edge")  # there is no modulus
        return
    assert not found(LIES[lie].of(case_of(kind).plan()), 1000).exceeds


class EveryBlock(LyingService):
    """Victims in all blocks: of each there is one variance more."""

    window = 1


class EveryBlockOffered(LyingServer):
    window = 1
    times = 0


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "lie"), [("pairs", EveryBlock), ("ballots", EveryBlockOffered)])
def test_three_percent_of_a_deployed_services_sigma_would_be_seen(
    kind: str, lie: type[LiedTo]
) -> None:
    """Its noise is right; and a variance of 0.97^2 of it would lie outside of its interval."""
    game = lie.of(case_of(kind, size=4).plan())
    finding = found(game, ENOUGH)
    (spread,) = finding.spreads
    assert not finding.exceeds
    assert spread.high * MISSING**2 < 1
    assert game.expected_mu is not None
    assert finding.mu > 0.7 * game.expected_mu  # which is no weak attack


KEYS = {"key not checked"}
"""Planted in clients: see below."""
PLANTED_IN_SERVICES = [
    pytest.param(kind, name, id=f"{kind}: {name}")
    for kind in SERVICES_KINDS
    for name, fault in (SERVER_FAULTS | STORE_LIED_FAULTS).items()
    if fault.concerns(case_of(kind).plan()) and name not in KEYS
]
LIE_SEEN_BY = {
    "server's noise halved": "variance",
    "server's state stands": "variance",
    "noise after lifting": "wrapped",
    "noise drawn again": "publications added",
    "a message counts twice": "",
    "service's noise halved": "variance",
    "service's state stands": "variance",
    "a second subset summed": "subsets subtracted",
    "offer drawn again": "asked again",
}


def test_there_is_a_mutant_for_every_fault_of_a_deployed_service() -> None:
    assert set(LIE_SEEN_BY) | KEYS == set(SERVER_FAULTS) | set(STORE_LIED_FAULTS)
    assert {seen for seen in LIE_SEEN_BY.values() if seen} - {"variance"} < set(audit.STATISTICS)
    assert len(PLANTED_IN_SERVICES) == 9 + 6


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), PLANTED_IN_SERVICES)
def test_every_fault_of_a_deployed_service_is_caught(kind: str, name: str) -> None:
    """Variances differ by a third or more, statistics by six standard errors."""
    finding = found((SERVER_FAULTS | STORE_LIED_FAULTS)[name].of(case_of(kind).plan()), 2000)
    assert finding.exceeds
    if LIE_SEEN_BY[name] == "variance":
        assert finding.wrong_spreads
    else:
        assert finding.mu > finding.claim.mu  # type: ignore[operator]
        assert finding.epsilon > CLAIM.epsilon
        assert finding.best.event.startswith(LIE_SEEN_BY[name])


@pytest.mark.parametrize("kind", SERVICES_KINDS)
def test_a_service_with_a_key_of_its_own_reads_only_clients_that_check_no_digest(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that trust it, and all of them, the mutant, if a digest were not compared."""
    game = SubstitutedKey.of(case_of(kind).plan())
    trusting = SERVER_FAULTS["key not checked"].of(game.plan)
    right = Document.from_bytes
    for victim in (0, 1):
        read, due = np.zeros((1, 3)), np.full((1, 3), 2.0 * victim - 1)
        assert np.array_equal(game.play(victim, 3, seeded_random(1), attempt=0), read)
        assert np.array_equal(trusting.play(victim, 3, seeded_random(1), attempt=0), due)
        with monkeypatch.context() as patched:
            patched.setattr(Document, "from_bytes", lambda content, pinned=None: right(content))
            assert np.array_equal(game.play(victim, 3, seeded_random(1), attempt=0), due)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["store keeps order", "dummies look alike"])
def test_dummies_that_can_be_told_are_caught(fault: str) -> None:
    """By their place, or by how their ciphertexts begin; right ones by neither."""
    case = case_of("ballots")
    right, planted = (
        found(Attacker(store), 1000, Claim(CLAIM))
        for store in (ThroughStore.of(case), STORE_FAULTS[fault].of(case))
    )
    assert planted.exceeds
    assert planted.best.event.startswith("together")
    assert not right.exceeds
    seen = {shown.event.split(" ")[0]: shown.epsilon for shown in planted.shown}
    assert seen["likelihood"] <= CLAIM.epsilon  # the sums are as they should be


def test_faults_of_the_store_are_planted_where_they_are_faults() -> None:
    of_kind = {
        kind: [
            name
            for name, fault in STORE_FAULTS.items()
            if fault.concerns(case_of(kind).mechanisms[0])
        ]
        for kind in ("coins", *SERVICES_KINDS)
    }
    assert of_kind == {
        "coins": ["store keeps order", "store keeps reports"],
        "pairs": [],
        "ballots": ["store keeps order", "dummies look alike"],
    }


def test_the_command_shows_mu_where_it_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its usual rate one command in a thousand may accuse what is right; here, one in 10^9."""
    monkeypatch.setattr("overhand.lab.audit.scope.FAILURE_RATE", RATE)
    arguments = ("lab", "audit", "--values", "histogram:3", "--mechanism", "ballots", "--runs",
                 "4000", "--seed", "3", "--jobs", "1")  # fmt: skip
    shown = overhand(*arguments)
    assert shown.returncode == 0, shown.stderr
    assert rows_that_hold(shown.stdout) == 3
    plan = case_of("ballots", "histogram:3").plan()
    assert shown.stdout.count(f"/ {plan.mu:.3f}") == 2
    _, *watched = as_json(*arguments)["findings"]
    for finding in watched:
        assert finding["claim"]["mu"] == plan.mu
        assert finding["mu"] <= plan.mu
        assert [spread["statistic"] for spread in finding["spreads"]] == ["filtered", "running sum"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", SERVICES_KINDS)
def test_the_command_audits_what_one_service_sees(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overhand.lab.audit.scope.FAILURE_RATE", 1e-6)
    arguments = ("lab", "audit", "--mechanism", kind, "--values", "bit", "--mutants", "--seed",
                 "3", "--jobs", "1")  # fmt: skip
    printed = as_json(*arguments)
    assert printed["ok"]
    scope = Scope(kinds=(kind,), specs=("bit",), local=False, store=(), server=())
    jobs = [*scope.shipped_jobs(), *scope.mutants()]
    assert [finding["name"] for finding in printed["findings"]] == [job.name for job in jobs]
    accused = [one["name"] for one in printed["findings"] if one["verdict"] == "caught"]
    assert [name.split(": ")[1] for name in accused][-5:] == [f"coarse draws, {t}" for t in BLOCKS]
    assert f"{kind}: increments rounded" in accused
    said = overhand(*arguments).stdout
    assert f"{kind}: increments rounded: variances, of 1 that is planned: filtered 1." in said


@pytest.mark.slow
def test_the_command_audits_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its faults are planted above. At a rate of 1e-9, a verdict is wrong as rarely."""
    monkeypatch.setattr("overhand.lab.audit.scope.FAILURE_RATE", RATE)
    printed = as_json("lab", "audit", "--mechanism", "server", "--runs", "1000", "--jobs", "1")
    assert printed["ok"]
    assert [(one["name"], one["verdict"]) for one in printed["findings"]] == [
        (f"{kind}, {what}", "holds")
        for kind in SERVICES_KINDS
        for what in ("server, lied to", "replayed", "at the edge", "key exchanged")
        if (kind, what) != ("ballots", "at the edge")
    ]


def test_a_victim_is_watched_for_as_long_as_it_tells_much() -> None:
    """What is not watched, all blocks after so many, is a twentieth of what there is to see."""
    for kind in SERVICES_KINDS:
        noise = case_of(kind).plan().mechanisms[0].noise_share
        assert isinstance(noise, CorrelatedNoise)
        seen = float((Filter(noise).column(AFTER + 1) ** 2).sum())
        assert 0.94 < seen / float(noise.square_norm) < 1
