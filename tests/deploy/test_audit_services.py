"""Noise that the services make, attacked from both sides, and faults of either that are caught.

The lying service plays against the server's real code, whose noise is the system's: what is right
is accused with probability 1e-9, and a fault is missed about as rarely, by the law of its noise.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import KeyPair
from overhand.deploy.protocol.wire import Release
from overhand.deploy.server.store import ServerStore
from overhand.lab import audit
from overhand.lab.audit import Scope
from overhand.lab.audit.attacks import Attacker, LevelView
from overhand.lab.audit.audit import Finding, LossLaw, audit_game, find_noticed_part
from overhand.lab.audit.cases import ONCE, TOGETHER, Case, Placement, base, moves
from overhand.lab.audit.faults import without_noise
from overhand.lab.audit.lying import (
    SERVER_FAULTS,
    LiftedFirst,
    LyingService,
    RestoredDatabase,
    ServerFault,
    SubstitutedKey,
)
from overhand.lab.audit.store import STORE_FAULTS, ThroughStore
from overhand.mechanisms import Mechanism, PairsSum
from overhand.model import NoiseBy, Privacy
from overhand.randomness import seeded_random
from overhand.values import values_of
from support.cli_runner import as_json, overhand, rows_that_hold
from support.loss_laws import true_epsilon
from support.lying_services import Alone, LowestOnly, Replayed

CLAIM = Privacy(1.0, 0.01)
RATE = 1e-9
KINDS = ("ballots", "pairs")


PLACEMENTS = (ONCE, Placement(reports=3), Placement(batches=3))


def case_of(
    kind: str,
    levels: int = 1,
    spec: str = "bit",
    size: int = 8,
    noise_by: NoiseBy = "services",
    placement: Placement = ONCE,
) -> Case:
    return Case(kind, values_of(spec), levels, size, CLAIM, noise_by, placement)


def lied(game: LyingService, runs: int) -> Finding:
    """What a lying service certifies."""
    return audit_game("tested", game, CLAIM, runs=runs, random=seeded_random(1), rate=RATE)


def quiet(case: Case) -> LyingService:
    """Against a server that adds no noise: what is published is the sum."""
    return LyingService.against(case, tuple(without_noise(m) for m in case.mechanisms))


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
@pytest.mark.parametrize("spec", ["bit", "histogram:3"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_lying_service_is_hidden_from_by_the_servers_noise_alone(
    kind: str, spec: str, placement: Placement
) -> None:
    """Without that noise the attack reads every victim, at all levels: it is no weak one.

    All reports of a person count, in one batch or in a batch each: as many as the plan allows.
    """
    case = case_of(kind, 2, spec, placement=placement)
    assert case.plan().reports == placement.reports * placement.batches
    moved = [moves(mechanism, placement.reports) for mechanism in case.mechanisms]
    for victim in (0, 1):
        read, added, *_ = quiet(case).play(victim, 5, seeded_random(2), attempt=0)
        views = [LevelView(m, placement.reports) for m in case.mechanisms]
        exact = [
            base(m)[list(of_level)] + victim * np.array(list(of_level.values()))
            for m, of_level in zip(case.mechanisms, moved, strict=True)
        ]
        due = sum(
            float(view.likelihood(sums[np.newaxis] + round(view.mechanism.offset))[0])
            for view, sums in zip(views, exact, strict=True)
        )
        assert read == pytest.approx(np.full(5, due))
        assert added == pytest.approx(np.full(5, placement.batches * due))
        noisy = LyingService.of(case).play(victim, 20, seeded_random(2), attempt=0)[0]
        assert len(set(noisy.round(6))) > 3


@pytest.mark.parametrize("spec", ["real", "vector:2"])
def test_a_lying_service_moves_any_sum_to_the_edge_and_knows_the_way_back(spec: str) -> None:
    case = case_of("pairs", 1, spec)
    for victim in (0, 1):
        likelihood, _, wrapped = quiet(case).play(victim, 10, seeded_random(2), attempt=0)
        assert len(set(likelihood)) == 1
        assert np.array_equal(np.sign(likelihood), np.full(10, 2 * victim - 1))
        assert np.array_equal(wrapped, np.full(10, 2 * victim - 1))


def test_alarms_that_lies_raise_are_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every sum at the edge of its range raises one: thousands in an audit."""
    logger = logging.getLogger("overhand.deploy")
    monkeypatch.setattr(logger, "propagate", False)  # as if nobody had set up any logs
    monkeypatch.setattr(logger, "handlers", [])
    LyingService.of(case_of("pairs")).play(1, 2, seeded_random(2), attempt=0)
    assert capsys.readouterr().err == ""


def test_the_attack_goes_through_sealing_too() -> None:
    """With real keys the server opens the same messages: its exact sum is the victim's bit."""
    case = case_of("ballots", 2)
    mechanisms = tuple(without_noise(m) for m in case.mechanisms)
    game = LyingService.against(case, mechanisms, KeyPair.generate())
    for victim in (0, 1):
        sealed = game.play(victim, 4, seeded_random(2), attempt=0)
        plain = quiet(case).play(victim, 4, seeded_random(2), attempt=0)
        assert sealed == pytest.approx(plain)
        assert np.array_equal(np.sign(sealed[0]), np.full(4, 2 * victim - 1))


def test_the_same_attack_reads_what_users_alone_noise() -> None:
    """One victim's own coins are all that is left: users' noise rests on an honest service."""
    game = LyingService.of(case_of("coins", size=64, noise_by="users"))
    for victim in (0, 1):
        read = game.play(victim, 200, seeded_random(2), attempt=0)[0] > 0
        assert (read == victim).mean() > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_lying_service_learns_no_more_than_is_claimed(kind: str) -> None:
    """With so many runs that half of the server's noise would be accused."""
    game = LyingService.of(case_of(kind))
    finding = lied(game, runs=6000)
    assert not finding.exceeds
    assert finding.epsilon == pytest.approx(finding.expected, abs=0.2)
    share = RATE / len(finding.shown)
    assert find_noticed_part(game.mechanisms, CLAIM, runs=4500, rate=share) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("lie", [LyingService, LowestOnly])
@pytest.mark.parametrize("kind", KINDS)
def test_no_lie_about_batches_tells_more(kind: str, lie: type[LyingService]) -> None:
    """Whether levels are unrelated, or most of them dropped."""
    game = lie.of(case_of(kind, 3))
    finding = lied(game, runs=2000)
    assert not finding.exceeds
    # And the attack is no weak one: without noise it reads the value, dropped levels or not.
    silent = lie.against(case_of(kind, 3), tuple(without_noise(m) for m in game.mechanisms))
    assert lied(silent, runs=1000).epsilon > 3


@pytest.mark.parametrize("placement", PLACEMENTS[1:], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_law_of_the_loss_counts_all_reports_of_a_person(
    kind: str, placement: Placement
) -> None:
    """It is the accountant's if they are together, a little less apart, and far more unplanned."""
    case = case_of(kind, placement=placement)
    planned = true_epsilon(LossLaw.of(case.mechanisms, placement), CLAIM.delta)
    unplanned = LossLaw.of(replace(case, placement=ONCE).mechanisms, placement)
    if placement.batches == 1:
        assert planned == pytest.approx(CLAIM.epsilon, abs=0.005)
    else:
        assert 0.9 < planned < CLAIM.epsilon
        other = true_epsilon(LossLaw.of(case.mechanisms * placement.batches), CLAIM.delta)
        assert planned == other
    assert true_epsilon(unplanned, CLAIM.delta) > 2.9 * CLAIM.epsilon
    # Of so little noise even the few runs of the command see more than is claimed.
    part = find_noticed_part(case.mechanisms, CLAIM, runs=937, rate=5e-6, placement=placement)
    assert part > 1 / 9


def loss_of(mechanism: Mechanism, reports: int, *, is_pessimistic: bool) -> Any:
    """Of the counts of one batch that has so many reports of a person, by dp-accounting alone."""
    composed: Any = None
    with np.errstate(divide="ignore"):
        log = np.log(mechanism.honest_noise().pmf.probabilities)
    for move in moves(mechanism, reports).values():
        loss = privacy_loss_distribution.from_two_probability_mass_functions(
            dict(enumerate(log)),
            {place + abs(move): chance for place, chance in enumerate(log)},
            pessimistic_estimate=is_pessimistic,
            value_discretization_interval=1e-3,
        )
        composed = loss if composed is None else composed.compose(loss)
    return composed


def placed_delta(
    mechanism: Mechanism, parts: Sequence[int], *, is_pessimistic: bool = False
) -> float:
    """Of batches with so many reports each, at one level or another: bounded from below."""
    losses = {part: loss_of(mechanism, part, is_pessimistic=is_pessimistic) for part in set(parts)}
    composed = reduce(lambda one, other: one.compose(other), (losses[part] for part in parts))
    return float(composed.get_delta_for_epsilon(CLAIM.epsilon))


@pytest.mark.parametrize(("spec", "reports"), [("bit", 2), ("bit", 3), ("histogram:3", 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_certificate_covers_every_placement_of_reports(
    kind: str, spec: str, reports: int
) -> None:
    """All in one node or over many, at one level so and at the other so: by another route.

    Noise for one report, the mutant, is too little wherever they are.
    """
    case = case_of(kind, 2, spec, placement=Placement(reports))
    (right, same), (wrong, _) = case.mechanisms, replace(case, placement=ONCE).mechanisms
    assert right.honest_noise() == same.honest_noise()
    spent, leaked = case.plan().delta_spent, case.plan().delta_leaked
    ways = [way for way in ((2,), (1, 1), (3,), (2, 1), (1, 1, 1)) if sum(way) == reports]
    for first, second in itertools.combinations_with_replacement(ways, 2):
        assert placed_delta(right, first + second) <= spent <= CLAIM.delta
        assert placed_delta(wrong, first + second) > 2 * CLAIM.delta
    most = placed_delta(right, (reports, reports), is_pessimistic=True)
    assert spent <= 1.01 * most + leaked  # and no more than it needs


def test_levels_of_a_victim_are_in_unrelated_batches() -> None:
    game = LyingService.of(case_of("ballots", 2))
    (lower,), (upper,) = (game.batches(5, level) for level in (1, 2))
    assert lower.number // 2 != upper.number


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_message_that_is_sent_again_does_not_count_again(kind: str) -> None:
    """Each batch that it counts in has noise of its own: their mean would show it."""
    assert not lied(Replayed.of(case_of(kind)), runs=1000).exceeds


def test_a_replay_is_the_same_ciphertext_in_other_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the test above cannot pass because nothing was sent again."""
    received: list[Release] = []
    right = ServerStore.receive

    def receive(database: ServerStore, release: Release) -> bool:
        received.append(release)
        return right(database, release)

    monkeypatch.setattr(ServerStore, "receive", receive)
    game = Replayed.of(case_of("ballots"))
    game.play(1, 1, seeded_random(1), attempt=0)
    (level,) = game.document.formats.levels
    batches = [set(map(bytes, level.ciphertexts(release.body))) for release in received]
    assert len({release.batch for release in received}) == len(batches) == Replayed.copies
    assert len(set.intersection(*batches)) == 1
    assert all(len(batch) == level.batch_messages() for batch in batches)


def test_without_noise_a_message_counts_in_one_sum_alone() -> None:
    """The same without chance: of all sums that have the victim's message, one has its 1."""
    (mechanism,) = case_of("ballots").mechanisms
    one, more = (
        lie.against(case_of("ballots"), (without_noise(mechanism),)).play(
            1, 5, seeded_random(4), attempt=0
        )[1]
        for lie in (LyingService, Replayed)
    )
    assert (more < one).all()  # the others are those of a victim who holds 0


@pytest.mark.parametrize(
    ("spec", "placement"), [("bit", ONCE), ("histogram:3", ONCE), ("bit", TOGETHER)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_victim_who_is_said_to_be_alone_is_hidden_by_the_servers_noise(
    kind: str, spec: str, placement: Placement
) -> None:
    """Without it, what is published is the victim's value: the noise does not go with users."""
    case = case_of(kind, 2, spec, placement=placement)
    silent = Alone.against(case, tuple(without_noise(m) for m in case.mechanisms))
    for victim in (0, 1):
        read = silent.play(victim, 10, seeded_random(2), attempt=0)[0]
        assert np.array_equal(np.sign(read), np.full(10, 2 * victim - 1))
        noisy = Alone.of(case).play(victim, 20, seeded_random(2), attempt=0)[0]
        assert len(set(noisy.round(6))) > 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_service_with_a_key_of_its_own_reads_only_clients_that_check_no_digest(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that trust it, and all of them, the mutant, if a digest were not compared."""
    game = SubstitutedKey.of(case_of(kind))
    trusting = replace(game, trusting=True)
    right = Document.from_bytes
    for victim in (0, 1):
        read, due = np.zeros((1, 3)), np.full((1, 3), 2.0 * victim - 1)
        assert np.array_equal(game.play(victim, 3, seeded_random(1), attempt=0), read)
        assert np.array_equal(trusting.play(victim, 3, seeded_random(1), attempt=0), due)
        with monkeypatch.context() as patched:
            patched.setattr(Document, "from_bytes", lambda content, pinned=None: right(content))
            assert np.array_equal(game.play(victim, 3, seeded_random(1), attempt=0), due)


SEEN_BY = {
    "server's noise halved": "likelihood",
    "noise drawn again": "publications added",
    "noise after lifting": "wrapped",
    "a level without noise": "likelihood",
    "noise for one report": "likelihood",
    "noise for one, apart": "publications added",
}
PLANTED = [
    pytest.param(kind, fault, id=f"{kind}: {fault.name}")
    for kind in KINDS
    for fault in SERVER_FAULTS
    # Lifting is for pairs alone, and each placement of two reports is long enough with one kind.
    if kind == fault.kind or (fault.kind == "ballots" and fault.placement == ONCE)
]


def test_there_is_a_mutant_for_every_fault_of_a_server_that_is_asked_for() -> None:
    assert set(SEEN_BY) == {fault.name for fault in SERVER_FAULTS}
    assert set(SEEN_BY.values()) < set(audit.STATISTICS)
    assert [len(PLANTED), len(KINDS) * len(SERVER_FAULTS)] == [9, 12]
    placed = {fault.placement for fault in SERVER_FAULTS}
    assert placed == {ONCE, TOGETHER, Placement(batches=2)}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "fault"), PLANTED)
def test_every_fault_of_the_server_is_caught(kind: str, fault: ServerFault) -> None:
    game = fault.plant(case_of(kind, fault.levels, placement=fault.placement))
    finding = lied(game, runs=max(2000, 144_000 // fault.one_in))
    assert finding.exceeds
    assert finding.best.event.startswith(SEEN_BY[fault.name])


def test_noise_after_lifting_is_right_until_somebody_lies() -> None:
    """Sums of honest batches are what they should be: only the edge of the range tells."""
    (right,) = case_of("pairs").mechanisms
    assert isinstance(right, PairsSum)
    planted = LiftedFirst.of_entry(right.entry(), right.noise_share, right.values)
    residues, noise = np.arange(9, dtype=np.uint64)[:, np.newaxis], np.full((9, 1), -3)
    assert np.array_equal(planted._lift(residues, noise), right._lift(residues, noise))
    game = LyingService.against(case_of("pairs"), (planted,))
    for victim in (0, 1):
        *_, wrapped = game.play(victim, 50, seeded_random(5), attempt=0)
        assert np.array_equal(wrapped, np.full(50, 2 * victim - 1))


def test_noise_that_is_drawn_again_is_in_no_single_publication(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One publication tells what one life of the database does; three tell what all three do.

    By chance, two lives publish the same 40 sums once in 10^12 runs at most.
    """
    publish, lives = LyingService._publish, list[Any]()

    def keep(game: LyingService, releases: Sequence[Release]) -> Any:
        lives.append(publish(game, releases))
        return lives[-1]

    monkeypatch.setattr(LyingService, "_publish", keep)
    restored, once = (game.of(case_of("ballots")) for game in (RestoredDatabase, LyingService))
    first, added = restored.play(1, 40, seeded_random(3), attempt=0)
    assert len(lives) == 3
    assert all(one != other for one, other in itertools.combinations(lives, 2))
    replayed = iter(lives.copy())
    monkeypatch.setattr(LyingService, "_publish", lambda *_: next(replayed))
    alone = [once.play(1, 40, seeded_random(3), attempt=0)[0] for _ in lives]
    assert np.array_equal(first, alone[0])
    assert added == pytest.approx(np.sum(alone, axis=0))


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["store keeps order", "dummies look alike"])
def test_dummies_that_can_be_told_are_caught(fault: str) -> None:
    """By their place, or by how their ciphertexts begin; right ones by neither."""
    case = case_of("ballots")
    right, planted = (
        audit_game("tested", Attacker(store), CLAIM, runs=1000, random=seeded_random(6), rate=RATE)
        for store in (ThroughStore.of(case), STORE_FAULTS[fault].of(case))
    )
    assert planted.exceeds
    assert planted.best.event.startswith("together")
    assert not right.exceeds
    seen = {shown.event.split(" ")[0]: shown.epsilon for shown in planted.shown}
    assert seen["likelihood"] <= CLAIM.epsilon  # the sums are as they should be


def test_faults_of_the_store_are_planted_where_they_are_faults() -> None:
    of_kind = {
        kind: [name for name, fault in STORE_FAULTS.items() if fault.concerns(case.mechanisms[0])]
        for kind, case in {
            "coins": case_of("coins", noise_by="users"),
            "pairs": case_of("pairs"),
            "ballots": case_of("ballots"),
        }.items()
    }
    assert of_kind == {
        "coins": ["store keeps order", "store keeps reports"],
        "pairs": [],
        "ballots": ["store keeps order", "dummies look alike"],
    }


def test_users_noise_is_audited_alone_if_it_is_asked_for() -> None:
    names = {
        by: [job.name for job in Scope(specs=("bit",), shufflers=1, noise=(by,)).shipped_jobs()]
        for by in ("users", "services")
    }
    assert not any(name.endswith(audit.BY_SERVICES) for name in names["users"])
    assert all(name.endswith(audit.BY_SERVICES) for name in names["services"])
    assert {name.split(",")[0] for name in names["services"]} == {"pairs", "ballots"}


def test_the_command_says_who_makes_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its usual rate one command in a thousand may accuse what is right; here, one in 10^9."""
    monkeypatch.setattr("overhand.lab.audit.scope.FAILURE_RATE", RATE)
    shown = overhand("lab", "audit", "--values", "bit", "--mechanism", "pairs", "--runs", "1000",
                     "--seed", "3", "--jobs", "1", "--shufflers", "1")  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    first, second = shown.stdout.split("services' noise")
    assert rows_that_hold(first) == rows_that_hold(second) == 3


@pytest.mark.slow
def test_the_command_audits_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a rate of 1e-5, a verdict is wrong with probability 1e-10; at the usual one, with 1e-7."""
    monkeypatch.setattr("overhand.lab.audit.scope.FAILURE_RATE", 1e-5)
    printed = as_json("lab", "audit", "--mechanism", "server", "--runs", "72000", "--mutants",
                      "--shufflers", "2", "--jobs", "1")  # fmt: skip
    assert printed["ok"]
    verdicts = [finding["verdict"] for finding in printed["findings"]]
    assert verdicts == ["holds"] * 10 + ["caught"] * 8
