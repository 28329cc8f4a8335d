"""The audit never accuses what is shipped, and catches every planted fault.

An audit of a right deployment is wrong with probability 1e-3 at most (1e-9 here, as everywhere in
these tests). That a fault is caught is checked twice: by the law of its noise, without chance, and
by a run with a fixed seed.
"""

from __future__ import annotations

import math
from importlib import import_module

import numpy as np
import pytest
from scipy import stats

from overhand import errors
from overhand.accounting import gaussian_delta, leaked_delta
from overhand.accounting.composition import quick_delta
from overhand.deploy.shuffler import batching
from overhand.lab import audit
from overhand.lab.audit import KINDS, NOTHING, STATISTICS, VALUES, Scope
from overhand.lab.audit.attacks import Answers, Attacker, LevelView, Listener, statistics_of
from overhand.lab.audit.audit import (
    Claim,
    Finding,
    LossLaw,
    audit_game,
    epsilon_bound,
    find_noticed_part,
    least_probability,
    most_probability,
    mu_bound,
)
from overhand.lab.audit.blocks import WatchedBlocks
from overhand.lab.audit.cases import (
    SERVICES_KINDS,
    Case,
    Deployment,
    OneByOne,
    affordable_runs,
    base,
    can_send,
    moves,
    neighbours,
)
from overhand.lab.audit.deployed import STORE_FAULTS, LiedTo, ThroughStore
from overhand.lab.audit.faults import FAULTS, Fault, NoPermutation
from overhand.lab.audit.lattice import LatticeAttack
from overhand.lab.baselines import CapResponse
from overhand.lab.baselines.local import LocalResponse, SubsetResponse, WindowResponse
from overhand.mechanisms import MECHANISMS, CoinSum
from overhand.model import Counts, Privacy, Rows
from overhand.planning import Requirements, levels_of
from overhand.randomness import secure_random, seeded_random
from overhand.shuffle import shuffle
from overhand.values import BITS, Reals, values_of
from support.cli_runner import as_json, overhand, rows_that_hold
from support.loss_laws import true_epsilon

CLAIM = Privacy(1.0, 0.01)
RATE = 1e-9
LEVELS = 2
OF_USERS = tuple(kind for kind in MECHANISMS if kind not in SERVICES_KINDS)


def case_of(kind: str, spec: str = "bit", levels: int = LEVELS) -> Case:
    """Of the services there is one level."""
    return Case(kind, values_of(spec), 1 if kind in SERVICES_KINDS else levels, 8, CLAIM)


def found(deployment: Deployment, *, runs: int, seed: int) -> Finding:
    return audit_game(
        "tested",
        Attacker(deployment),
        Claim(CLAIM),
        runs=runs,
        random=seeded_random(seed),
        rate=RATE,
    )


def heard(deployment: Deployment, *, runs: int, seed: int) -> Finding:
    """By the shuffling service, which must not learn anything."""
    return audit_game(
        "tested",
        Listener(deployment),
        Claim(NOTHING),
        runs=runs,
        random=seeded_random(seed),
        rate=RATE,
    )


@pytest.mark.parametrize("trials", [1, 2, 17, 150])
@pytest.mark.parametrize("rate", [0.2, 1e-3])
def test_probabilities_are_outside_their_bounds_no_more_often_than_promised(
    trials: int, rate: float
) -> None:
    """All outcomes, at many probabilities: the coverage is exact, not sampled."""
    outcomes = np.arange(trials + 1)
    least = least_probability(outcomes, trials, rate)
    most = most_probability(outcomes, trials, rate)
    tight = 0.0
    small = np.geomspace(1e-5, 0.5, 200)
    for p in np.concatenate([small, 1 - small]):
        masses = stats.binom.pmf(outcomes, trials, p)
        misses = [masses[least > p].sum(), masses[most < p].sum()]
        assert max(misses) <= rate * (1 + 1e-9)
        tight = max(tight, *misses)
    assert tight > rate / 3  # no wider than need be


@pytest.mark.parametrize("delta", [0.0, 0.05])
@pytest.mark.parametrize(("p", "q"), [(0.9, 0.3), (0.6, 0.02), (0.3, 0.3), (0.06, 0.5), (1, 0.4)])
def test_epsilon_is_overstated_no_more_often_than_promised(
    p: float, q: float, delta: float
) -> None:
    trials, rate = 60, 1e-3
    outcomes = np.arange(trials + 1)
    bounds = epsilon_bound(
        outcomes[:, np.newaxis], outcomes[np.newaxis], trials, delta=delta, rate=rate
    )
    masses = np.outer(stats.binom.pmf(outcomes, trials, p), stats.binom.pmf(outcomes, trials, q))
    true = max(0.0, math.log((p - delta) / q))
    assert masses[bounds > true + 1e-12].sum() <= rate


@pytest.mark.parametrize("slack", [0.0, 0.05])
@pytest.mark.parametrize(("p", "q"), [(0.9, 0.3), (0.6, 0.02), (0.3, 0.3), (0.06, 0.5), (1, 0.4)])
def test_mu_is_overstated_no_more_often_than_promised(p: float, q: float, slack: float) -> None:
    trials, rate = 60, 1e-3
    outcomes = np.arange(trials + 1)
    bounds = mu_bound(outcomes[:, np.newaxis], outcomes[np.newaxis], trials, slack=slack, rate=rate)
    masses = np.outer(stats.binom.pmf(outcomes, trials, p), stats.binom.pmf(outcomes, trials, q))
    true = max(0.0, float(stats.norm.ppf(p - slack) - stats.norm.ppf(q)))
    assert masses[bounds > true + 1e-12].sum() <= rate


def test_the_halves_of_the_rate_are_not_both_spent_on_one_side() -> None:
    """The mutant that spends it twice is seen by the exact coverage."""
    trials, rate = 150, 1e-3
    outcomes = np.arange(trials + 1)
    least = least_probability(outcomes, trials, 4 * rate)
    misses = [stats.binom.pmf(outcomes, trials, p)[least > p].sum() for p in np.arange(1, 99) / 99]
    assert max(misses) > rate


def test_no_event_shows_more_than_the_largest_epsilon() -> None:
    outcomes = np.arange(201)
    bounds = epsilon_bound(outcomes[:, None], outcomes[None], 200, delta=0.01, rate=1e-3)
    assert bounds.max() == epsilon_bound(200, 0, 200, delta=0.01, rate=1e-3) > 2


def test_a_case_is_a_plan_for_its_guarantee() -> None:
    case = Case("shares", BITS, levels=2, size=8, privacy=Privacy(1.0, 0.01))
    assert (case.name, case.plan().horizon) == ("shares, bit, 2 levels", 16)
    assert case.plan().delta_spent <= 0.01


def test_the_store_shows_all_messages_of_every_batch() -> None:
    deployed = ThroughStore.of(case_of("coins", levels=1))
    (shown,) = deployed.transcript(np.zeros(40, np.uint8), seeded_random(1), attempt=0)
    assert shown.sealed.shape == (5, deployed.mechanisms[0].layout.messages_per_batch(8)) == (5, 24)


def test_a_thousand_runs_catch_shufflers_that_hand_messages_on_as_they_came() -> None:
    case = Case("coins", BITS, levels=1, size=8, privacy=Privacy(1.0, 0.01))
    game = Attacker(NoPermutation(case.deployment().mechanisms))
    claim = Claim(case.privacy)
    found = audit_game("unshuffled", game, claim, runs=1000, random=seeded_random(1))
    assert (round(found.epsilon, 1), found.best.event) == (4.4, "position >= 1")
    assert found.largest == pytest.approx(
        epsilon_bound(750, 0, 750, delta=0.01, rate=1e-3 / len(game.names))
    )


@pytest.mark.parametrize("spec", VALUES)
@pytest.mark.parametrize("kind", MECHANISMS)
def test_the_attacker_reads_the_sums_that_the_server_reads(kind: str, spec: str) -> None:
    if not can_send(kind, values_of(spec)):
        assert kind == "ballots"  # which are for bits and histograms
        return
    deployment = case_of(kind, spec, 1).deployment()
    (mechanism,) = deployment.mechanisms
    messages = mechanism.encode_rows(neighbours(mechanism, 1, 5), seeded_random(3))
    whole = deployment.add(mechanism, messages.gather(mechanism.size), seeded_random(5))
    batches = shuffle(whole, seeded_random(4))
    analyzed = mechanism.analyze(batches).reshape(5, -1)
    steps = LevelView(mechanism).sums(batches, 5)[:, 0] - mechanism.offset
    for place, coordinate in enumerate(moves(mechanism)):
        low = mechanism.values.lows[coordinate]
        values = steps[:, place] * mechanism.quantizer.unit + mechanism.size * low
        assert values == pytest.approx(analyzed[:, coordinate])


def test_neighbours_differ_in_one_user_by_all_that_is_possible() -> None:
    for spec, moved in (("bit", {0: 1}), ("histogram:3", {0: -1, 1: 1})):
        mechanism = case_of("coins", spec, 1).deployment().mechanisms[0]
        assert moves(mechanism) == moved
        zero, one = (neighbours(mechanism, victim, 2).reshape(2, 8) for victim in (0, 1))
        assert (zero != one).sum(axis=1).tolist() == [1, 1]
    for spec in ("real:10:50", "vector:2"):
        mechanism = case_of("shares", spec, 1).deployment().mechanisms[0]
        assert moves(mechanism) == {0: mechanism.steps}
        assert base(mechanism)[0] == 0


@pytest.mark.parametrize(
    "case",
    [
        case
        for kind in KINDS
        for values in map(values_of, VALUES)
        for levels in ((1, LEVELS) if kind not in SERVICES_KINDS and can_send(kind, values) else ())
        if (case := Case(kind, values, levels, 8, CLAIM)).is_affordable
    ],
    ids=lambda case: case.name,
)
@pytest.mark.slow
def test_what_is_shipped_keeps_its_claim(case: Case) -> None:
    """Where users make the noise: that of the services is in `test_audit_services`."""
    deployment = case.deployment()
    finding = found(deployment, runs=affordable_runs(8_000, deployment.messages), seed=20230)
    assert not finding.exceeds
    assert finding.epsilon <= CLAIM.epsilon < finding.largest
    # And what the law of the noise lets expect is what is seen: the audit is not blind.
    assert finding.epsilon == pytest.approx(finding.expected, abs=0.2)
    looked_at = [shown.event.rsplit(" ", 2)[0] for shown in finding.shown]
    assert looked_at == statistics_of(deployment.mechanisms)
    assert set(looked_at) < set(STATISTICS)


def test_a_full_audit_has_every_mechanism_and_value_alone_and_with_all_levels() -> None:
    jobs = list(Scope(runs=2000).shipped_jobs())
    mechanisms = [m for job in jobs for m in job.game.mechanisms]
    assert {m.kind for m in mechanisms} == set(OF_USERS)
    opposed = {m.noise_share.opposed for m in mechanisms if isinstance(m, CoinSum)}
    assert opposed == {True, False}
    assert {m.values for m in mechanisms} == {values_of(spec) for spec in VALUES}
    assert {job.game.levels for job in jobs if job.game.mechanisms} == {1, 2, 3}
    local = [job.game.counter for job in jobs if isinstance(job.game, Answers)]
    assert [type(counter) for counter in local] == [
        LocalResponse,
        WindowResponse,
        SubsetResponse,
        CapResponse,
    ]
    services = [job for job in jobs if isinstance(job.game, Listener)]
    assert [job.name for job in services] == [f"pairs, {spec}, masks" for spec in VALUES]
    assert {job.game.claim for job in services} == {Claim(NOTHING)}
    watched = [job.name for job in jobs if isinstance(job.game, WatchedBlocks)]
    both = ["server lies", "service lies"]
    more = ["2 reports together", "2 reports apart", "leak before", "leak after"]
    assert watched == [
        f"{kind}, {spec}, {what}"
        for kind, specs in (("pairs", VALUES), ("ballots", ("bit", "histogram:3")))
        for spec in specs
        for what in (both + more if spec == "bit" else both)
    ]
    lattices = [job.name for job in jobs if isinstance(job.game, LatticeAttack)]
    assert lattices == [
        f"{kind}, bit, bits after block {t}" for kind in SERVICES_KINDS for t in (1, 2, 3, 6, 8)
    ]
    lied_to = [job.name for job in jobs if isinstance(job.game, LiedTo)]
    assert lied_to == [
        *(f"{kind}, store, lied to" for kind in SERVICES_KINDS),
        *("pairs, server, lied to", "pairs, replayed", "pairs, at the edge"),
        *("ballots, server, lied to", "ballots, replayed"),
    ]
    # All noise of the services is judged by mu, besides epsilon and delta.
    judged = [job for job in jobs if isinstance(job.game, WatchedBlocks | LatticeAttack | LiedTo)]
    assert all(job.game.claim and job.game.claim.mu is not None for job in judged)
    assert len({job.name for job in jobs}) == len(jobs)


@pytest.mark.parametrize("spec", VALUES)
def test_local_mechanisms_keep_their_claim_and_no_smaller_one(spec: str) -> None:
    """A claim of two thirds of what is spent, the mutant, is refuted: the audit is not blind."""
    game = Answers.best(values_of(spec), CLAIM)
    for privacy, is_kept in ((CLAIM, True), (Privacy(2 / 3, CLAIM.delta), False)):
        claim, random = Claim(privacy), seeded_random(12)
        finding = audit_game(spec, game, claim, runs=60_000, random=random, rate=RATE)
        assert finding.exceeds != is_kept
        assert finding.expected is None


@pytest.mark.parametrize("kind", OF_USERS)
def test_the_law_of_the_loss_is_the_accountants(kind: str) -> None:
    case = case_of(kind)
    law = LossLaw.of(case.deployment().mechanisms)
    levels = levels_of(case.plan().mechanisms, Requirements(CLAIM))
    for delta in (1e-3, 0.01, 0.03):
        epsilon = true_epsilon(law, delta)
        by_noise = quick_delta(levels, Privacy(epsilon, delta)) - leaked_delta(levels, epsilon)
        assert by_noise == pytest.approx(delta, rel=0.02)


@pytest.mark.parametrize("mu", [0.2, 0.5, 1.5])
def test_the_law_of_a_gaussian_loss_is_the_accountants(mu: float) -> None:
    """A law on a grid shows no less than there is, and hardly less than that."""
    law = LossLaw.gaussian(mu)
    for delta in (1e-3, 0.01, 0.03):
        assert gaussian_delta(mu, true_epsilon(law, delta)) == pytest.approx(delta, rel=0.02)


def test_less_noise_than_the_noticed_part_is_noticed_and_more_is_not() -> None:
    mechanisms = case_of("coins").deployment().mechanisms
    game = Attacker(Deployment(mechanisms))
    part = find_noticed_part(game, Claim(CLAIM), runs=50_000, rate=1e-3)
    assert part is not None
    assert 0.5 < part < 0.95
    below, above = (
        LossLaw.of([m.reduce(p) for m in mechanisms]).expected_bound(
            50_000, delta=CLAIM.delta, rate=1e-3
        )
        for p in (part - 0.02, part + 0.02)
    )
    assert below > CLAIM.epsilon > above


RUNS = {"half the noise": 100_000, "budget not split": 20_000}
LEVELS_OF = {("coins", "budget not split"): 3, ("shares", "half the noise"): 1}
MUTANTS = [
    pytest.param(kind, fault, id=f"{kind}: {fault.name}")
    for kind, mechanism in MECHANISMS.items()
    for fault in FAULTS
    if fault.concerns(mechanism)
]
SEEN_BY = {
    "half the noise": "likelihood",
    "budget not split": "likelihood",
    "no permutation": "position",
    "seeded generator": "seed",
    "shared noise": "levels added",
    "share not masked": "unmasked",
    "masks reused": "same mask",
    "known masks": "known mask",
    "seeded service": "seed",
    "dummies last": "together",
}


def test_there_is_a_mutant_for_every_fault_that_is_asked_for() -> None:
    assert set(SEEN_BY) == {fault.name for fault in FAULTS}
    assert set(SEEN_BY.values()) < set(STATISTICS)
    of_kind = {
        kind: [fault.name for fault in FAULTS if fault.concerns(mechanism)]
        for kind, mechanism in MECHANISMS.items()
    }
    assert of_kind["coins"] == of_kind["shares"]
    assert of_kind == {
        "coins": [
            *("half the noise", "no permutation", "seeded generator"),
            *("budget not split", "shared noise"),
        ],
        "shares": of_kind["coins"],
        "pairs": ["seeded service", "share not masked", "masks reused", "known masks"],
        "ballots": ["no permutation", "seeded service", "dummies last"],
    }


def planted_in(case: Case, fault: Fault) -> Deployment:
    right = case.deployment()
    return fault.plant(right, right if case.is_of_services else case.unsplit_deployment())


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "fault"), MUTANTS)
def test_every_mutant_is_caught(kind: str, fault: Fault) -> None:
    planted = planted_in(case_of(kind, levels=LEVELS_OF.get((kind, fault.name), LEVELS)), fault)
    looked = found if fault.seen_by is Attacker else heard
    finding = looked(planted, runs=RUNS.get(fault.name, 4000), seed=7)
    assert finding.exceeds
    assert finding.best.event.startswith(SEEN_BY[fault.name])
    assert finding.epsilon > CLAIM.epsilon  # even of what must not tell anything
    if not fault.plain and SEEN_BY[fault.name] == "likelihood":
        # The law says that it is caught, and by how much: the seed had no part in it.
        assert finding.expected is not None
        assert finding.expected > CLAIM.epsilon + 0.1
        assert true_epsilon(LossLaw.of(planted.mechanisms), CLAIM.delta) > finding.epsilon


@pytest.mark.parametrize("kind", MECHANISMS)
def test_without_the_statistic_for_it_a_mutant_would_pass(kind: str) -> None:
    """Noisy sums alone show nothing of an order, a seed, a mask, or noise that is used twice."""
    for fault in FAULTS:
        if fault.concerns(MECHANISMS[kind]) and SEEN_BY[fault.name] != "likelihood":
            finding = found(planted_in(case_of(kind), fault), runs=1000, seed=8)
            assert finding.shown[0].event.startswith("likelihood")
            assert finding.shown[0].epsilon <= CLAIM.epsilon


@pytest.mark.parametrize("spec", VALUES)
def test_the_shuffling_service_is_told_nothing(spec: str) -> None:
    finding = heard(case_of("pairs", spec).deployment(), runs=1000, seed=9)
    assert finding.epsilon == 0
    assert not finding.exceeds


@pytest.mark.parametrize("kind", MECHANISMS)
def test_every_attempt_is_guessed_with_its_own_seed(kind: str) -> None:
    """A generator that is known leaves nothing but the value, on both inputs of each attempt."""
    name = "seeded service" if kind in SERVICES_KINDS else "seeded generator"
    game = Attacker(planted_in(case_of(kind), fault_named(name)))
    place = game.names.index("seed")
    for attempt in (0, 1, 0):
        for victim in (0, 1):
            shown = game.play(victim, 50, seeded_random(1), attempt)[place]
            assert np.array_equal(shown, np.full(50, game.levels * (2 * victim - 1)))


def fault_named(name: str) -> Fault:
    return next(fault for fault in FAULTS if fault.name == name)


@pytest.mark.parametrize("spec", VALUES)
@pytest.mark.parametrize("name", ["share not masked", "masks reused"])
def test_estimates_do_not_show_a_fault_of_masks(name: str, spec: str) -> None:
    """Under other masks, or none, the server's sums are what they were."""
    right, runs = case_of("pairs", spec).deployment(), 3
    planted = fault_named(name).plant(right, right)
    rows = neighbours(right.mechanisms[-1], 1, runs)
    sums, expected = (_sums(one, rows, runs) for one in (planted, right))
    for level, of_level in zip(sums, expected, strict=True):
        assert np.array_equal(level, of_level)


def _sums(deployment: Deployment, rows: Rows, runs: int) -> list[Counts]:
    """Level by level, by run and batch."""
    transcript = deployment.transcript(rows, seeded_random(4), 0)
    sums = [m.step_sums(s) for m, s in zip(deployment.mechanisms, transcript, strict=True)]
    return [level.reshape(runs, -1, level.shape[1]) for level in sums]


@pytest.mark.parametrize("kind", [kind for kind, m in MECHANISMS.items() if m.is_shuffle_model])
def test_the_shuffler_of_a_service_is_audited_as_it_is(kind: str) -> None:
    deployment = OneByOne(case_of(kind, levels=1).deployment().mechanisms)
    finding = found(deployment, runs=2000, seed=5)
    assert not finding.exceeds
    for shown in finding.shown[1:]:
        assert shown.epsilon < (0.3 if shown.event.startswith("position") else CLAIM.epsilon)


@pytest.mark.slow
def test_reports_that_go_through_the_store_keep_their_claim() -> None:
    finding = found(ThroughStore.of(case_of("coins", levels=1)), runs=1000, seed=5)
    assert not finding.exceeds
    assert all(shown.epsilon < 0.3 for shown in finding.shown)


FAULTS_IN_STORE = {
    "pairs": [
        *("service's noise halved", "service's state stands"),
        *("a second subset summed", "offer drawn again"),
    ],
    "ballots": [
        *("store keeps order", "dummies look alike"),
        *("service's noise halved", "service's state stands"),
    ],
}
KEPT_BY = {"store keeps order": "position", "store keeps reports": "together"}


@pytest.mark.parametrize(
    "fault", [pytest.param("store keeps order", marks=pytest.mark.slow), "store keeps reports"]
)
def test_a_store_that_does_not_shuffle_is_caught(fault: str) -> None:
    finding = found(STORE_FAULTS[fault].of(case_of("coins", levels=1)), runs=1000, seed=6)
    assert finding.exceeds
    seen = {shown.event.split(" ")[0]: shown.epsilon for shown in finding.shown}
    assert seen[KEPT_BY[fault]] > CLAIM.epsilon + 1
    # The sums, all that a shuffled batch shows, are as they should be.
    assert seen["likelihood"] <= CLAIM.epsilon
    assert finding.best.event.startswith("together")


def test_a_planted_store_leaves_the_real_one_alone() -> None:
    right = batching.permute
    planted = STORE_FAULTS["store keeps order"].of(case_of("coins", levels=1))
    with pytest.raises(errors.InvalidValue):
        planted.transcript(np.zeros(7, np.uint8), seeded_random(1), 0)
    assert batching.permute is right


@pytest.mark.parametrize("kind", OF_USERS)
def test_what_goes_through_the_store_comes_out_once_and_with_its_sum(kind: str) -> None:
    """Groups of commits end anywhere: every batch has the reports of its own users."""
    case = case_of(kind)
    deployed, rows = ThroughStore.of(case), (np.arange(64) % 3 == 0).astype(np.uint8)
    shown = deployed.transcript(rows, seeded_random(2), 0)
    sent = Deployment(case.mechanisms).transcript(rows, seeded_random(2), 0)
    for mechanism, level, expected in zip(case.mechanisms, shown, sent, strict=True):
        assert not np.array_equal(level.sealed, expected.sealed)
        for batch, right in zip(level.sealed, expected.sealed, strict=True):
            assert sorted(batch.tolist()) == sorted(right.tolist())
        assert np.array_equal(mechanism.step_sums(level), mechanism.step_sums(expected))


@pytest.mark.slow
@pytest.mark.parametrize("kind", MECHANISMS)
def test_the_store_in_full(kind: str) -> None:
    scope = Scope(kinds=(), store=(kind,), server=(), local=False)
    jobs = [*scope.shipped_jobs(), *scope.mutants()]
    assert [job.name for job in jobs if job.planted] == [
        *(f"{kind}: {name}" for name in KEPT_BY if kind in OF_USERS),
        *(f"{kind}: {name}" for name in FAULTS_IN_STORE.get(kind, ())),
    ]
    for job in jobs:
        verdict = audit.verdict_on(job, scope.privacy, of=10**6, random=seeded_random(20))
        assert verdict.is_right


def test_noise_from_the_system_is_audited_by_default_and_shares_their_tables() -> None:
    deployment = case_of("shares", levels=1).deployment()
    finding = audit_game(
        "secure", Attacker(deployment), Claim(CLAIM), runs=8000, random=secure_random(), rate=RATE
    )
    assert not finding.exceeds
    assert finding.epsilon > 0.5


def test_local_answers_are_audited_with_any_randomness() -> None:
    game = Answers.best(values_of("vector:2"), CLAIM)
    assert game.play(1, 10, secure_random(), 0).shape == (1, 10)


def test_statistics_are_larger_if_the_victim_holds_one() -> None:
    deployment = case_of("coins").deployment()
    attacker = Attacker(deployment)
    assert attacker.names == statistics_of(deployment.mechanisms) == list(STATISTICS)[:8]
    rows = [neighbours(deployment.mechanisms[-1], v, 4000) for v in (0, 1)]
    zero, one = (
        attacker.statistics(deployment.transcript(rows[v], random, 0), 4000, 1).mean(axis=1)
        for v, random in ((0, seeded_random(4)), (1, seeded_random(5)))
    )
    assert (one[[0, 5]] > zero[[0, 5]] + 0.1).all()


def test_shared_noise_is_planted_for_bits_only() -> None:
    shared = fault_named("shared noise")
    reals = Case("coins", Reals(), 2, 8, CLAIM).deployment()
    with pytest.raises(errors.InvalidValue, match="planted for bits"):
        shared.plant(reals, reals)


def test_what_has_no_certificate_is_not_audited() -> None:
    """The published constants are proved for epsilons up to 1, and not for any."""
    with pytest.raises(errors.Infeasible, match="no certificate"):
        Case("published", BITS, 1, 2, Privacy(40.0, 0.01)).deployment()


def test_the_command_prints_what_was_run_and_what_it_can_detect() -> None:
    shown = overhand("lab", "audit", "--values", "bit", "--mechanism", "coins", "--runs", "20000",
                     "--seed", "3", "--jobs", "1", "--shufflers", "2")  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    words = " ".join(shown.stdout.split())
    assert "claimed: epsilon=1, delta=0.01; batches of 8, 16 users" in words
    assert rows_that_hold(shown.stdout) == 3
    assert "with probability 0.999" in words


@pytest.mark.slow
def test_the_command_catches_mutants() -> None:
    printed = as_json("lab", "audit", "--values", "bit", "--mechanism", "coins", "--runs", "40000",
                      "--seed", "3", "--jobs", "1", "--mutants", "--shufflers", "2")  # fmt: skip
    assert printed["ok"]
    assert [f["verdict"] for f in printed["findings"]] == ["holds"] * 3 + ["caught"] * 5
    assert printed["confidence"] == 0.999


def test_the_same_seed_gives_the_same_report() -> None:
    arguments = ("lab", "audit", "--values", "real", "--mechanism", "shares", "--runs", "2000",
                 "--seed", "3", "--jobs", "1", "--shufflers", "2")  # fmt: skip
    first, second = (as_json(*arguments)["findings"] for _ in range(2))
    assert first == second


def test_a_mutant_that_is_missed_is_exit_code_1() -> None:
    """A thousand runs cannot see half the noise, and the command says so."""
    shown = overhand("lab", "audit", "--values", "bit", "--mechanism", "coins", "--runs", "1000",
                     "--seed", "3", "--jobs", "1", "--mutants", "--shufflers", "1")  # fmt: skip
    assert shown.returncode == 1
    assert "MISSED" in shown.stdout


@pytest.mark.slow
def test_the_command_audits_the_store() -> None:
    printed = as_json(
        "lab", "audit", "--mechanism", "store", "--runs", "1000", "--mutants",
        "--seed", "3", "--shufflers", "1", "--jobs", "1"
    )  # fmt: skip
    assert printed["ok"]
    assert [f["name"] for f in printed["findings"]] == [
        *(f"{kind}, bit, through the store" for kind in OF_USERS),
        *("pairs, store, lied to", "ballots, bit, through the store", "ballots, store, lied to"),
        *(f"{kind}: {fault}" for kind in OF_USERS for fault in KEPT_BY),
        *(f"{kind}: {fault}" for kind in SERVICES_KINDS for fault in FAULTS_IN_STORE[kind]),
    ]


def test_without_the_services_the_store_is_not_audited(monkeypatch: pytest.MonkeyPatch) -> None:
    command = import_module("overhand.cli.audit")  # the package has a function of this name
    monkeypatch.setattr(command, "has_service", lambda: False)
    refused = overhand("lab", "audit", "--mechanism", "store")
    assert refused.returncode == 2
    assert "extra `service`" in refused.stderr
    rest = overhand("lab", "audit", "--values", "real", "--runs", "1000", "--jobs", "1",
                    "--shufflers", "1")  # fmt: skip
    assert "not audited: the store" in rest.stderr
    assert "not audited: the server" in rest.stderr
    assert "lied to" not in rest.stdout
    assert "through the store" not in rest.stdout
    assert rows_that_hold(rest.stdout) == 7  # all others are there


def test_a_claim_that_is_exceeded_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Case.deployment
    monkeypatch.setattr(
        Case,
        "deployment",
        lambda case: Deployment(tuple(m.reduce(0.1) for m in right(case).mechanisms)),
    )
    shown = overhand("lab", "audit", "--values", "bit", "--mechanism", "shares", "--runs", "20000",
                     "--seed", "3", "--jobs", "1", "--shufflers", "1")  # fmt: skip
    assert shown.returncode == 1
    assert "EXCEEDED" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--runs", "999"), "runs=999"),
        (("--size", "1"), "size=1"),
        (("--shufflers", "7"), "shufflers=7"),
        (("--mechanism", "published", "--values", "vector:2"), "nothing to audit"),
        (("--mechanism", "store", "--values", "real"), "nothing to audit"),
        (("--mechanism", "ballots", "--values", "real"), "nothing to audit"),
        (("--mechanism", "strange"), "mechanism='strange'"),
        (("--values", "strange"), "strange"),
        (("--epsilon", "0"), "epsilon=0"),
        (("--jobs", "0"), "jobs=0"),
    ],
    ids=[
        "runs",
        "size",
        "shufflers",
        "published",
        "store",
        "ballots",
        "mechanism",
        "values",
        "epsilon",
        "jobs",
    ],
)
def test_what_cannot_be_audited_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    refused = overhand("lab", "audit", *arguments)
    assert refused.returncode == 2
    assert message in refused.stderr
