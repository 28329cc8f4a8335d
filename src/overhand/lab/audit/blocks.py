"""The n - 1 attack on noise of the services: everything is known but one victim and the noise.

One of the services lies, or all else does: it fills the victim's block with what it knows, waits,
and watches the blocks after it, with the best test that there is for Gaussian noise. Or it gets,
once, the state that the other one's noise is kept in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from overhand.accounting import gaussian_delta
from overhand.lab.audit.attacks import KNOWN_SEED
from overhand.lab.audit.audit import Claim, Game
from overhand.lab.audit.cases import base, moves
from overhand.mechanisms import Mechanism
from overhand.model import Counts, Floats, Privacy
from overhand.noise import Clip, CorrelatedNoise, ServiceNoise
from overhand.planning import Plan
from overhand.randomness import Random, seeded_random
from overhand.shuffle import shuffle, with_added

BEFORE, AFTER = 3, 44
"""How many blocks are watched before the victim's, and after it."""
LEAK_FACTOR = 2
"""How much more mu^2 one leak of a state costs at most."""
_CELLS = 4  # arrays of a block's size that are in memory
_HALVINGS = 60
_CLIPPED = 1.3  # standard deviations: a bound so tight that every seventh block is clipped

Liar = Literal["server", "service"]
"""Which service lies: it watches the other one's noise."""
Leak = Literal["", "before", "after"]
"""Whether the state is seen right before the victim's block, or right after it."""


class Placement(NamedTuple):
    """Where the victim's reports are: so many in a block, in so many blocks in a row."""

    reports: int = 1
    blocks: int = 1


@dataclass
class Filter:
    """Correlated noise as a linear system, in floats: what its rotations do but for rounding.

    A block takes registers f, the noise n that is kept and what was drawn, W, to A f + B n + b W;
    and W is (h f + l n + m) / step, rounded.
    """

    noise: CorrelatedNoise

    def __post_init__(self) -> None:
        rotations, matrix = self.noise.rotations, np.eye(len(self.noise.rotations) + 1)
        for i, rotation in enumerate(rotations):
            sine, tangent = float(rotation.s), float(rotation.t)
            matrix[-1] -= sine * matrix[i]
            matrix[i] += tangent * matrix[-1]
            matrix[-1] -= sine * matrix[i]
        self.a, self.kept = matrix[:-1, :-1], matrix[:-1, -1]
        self.h, self.through = matrix[-1, :-1], float(matrix[-1, -1])
        self.gains = np.array([rotation.gain for rotation in rotations], np.float64)
        # Of registers: those of independent ones have these inverse variances, in units.
        self.weights = np.array([float(rotation.weight) for rotation in rotations])

    def column(self, rows: int) -> Floats:
        """c_0, c_1, ...

        >>> noise = CorrelatedNoise.of(deviation=8.9, blocks=100)
        >>> bool(abs((Filter(noise).column(5000) ** 2).sum() / noise.norm**2 - 1) < 1e-9)
        True
        """
        after, found = self.gains, [1.0]
        for _ in range(rows - 1):
            found.append(-float(self.h @ after) / self.noise.step)
            after = self.a @ after
        return np.array(found)

    def registers(self, rows: Floats) -> Floats:
        """What blocks with this noise alone leave in the registers, by the last axes of rows."""
        state = np.zeros((len(self.gains), *rows.shape[1:]))
        for row in rows:
            state = np.tensordot(self.a, state, 1) + np.multiply.outer(self.gains, row)
        return state

    def given_state(self, rows: int) -> tuple[Floats, Floats]:
        """Of the blocks after a state that is known: its weights in z_t, and their covariance."""
        observed, kept, by_state, by_kept = self.a.T, self.kept, [self.h], [self.through]
        for _ in range(rows - 1):
            by_kept.append(float(by_state[-1] @ kept))
            by_state.append(observed @ by_state[-1])
        of_kept = np.zeros((rows, rows))
        for lag, weight in enumerate(by_kept):
            of_kept += weight * np.eye(rows, k=-lag)
        units = self.noise.deviation / math.sqrt(LEAK_FACTOR)  # of what is kept, in steps
        covariance = units**2 * (of_kept @ of_kept.T + np.eye(rows)) + np.eye(rows) / 12
        return np.array(by_state) / self.noise.step, covariance


@dataclass(frozen=True)
class WatchedBlocks(Game):
    """A victim in a plan of the services, seen by the other service: see the top of this file."""

    plan: Plan
    mechanism: Mechanism
    """The plan's, or that of a planted fault."""
    liar: Liar
    leak: Leak = ""
    placement: Placement = Placement()

    @classmethod
    def of(cls, plan: Plan, liar: Liar = "service", **more: Any) -> WatchedBlocks:
        return cls(plan, plan.mechanisms[0], liar, **more)

    @property
    def claim(self) -> Claim:
        """What the plan promises, or, if a state leaked, what follows from it."""
        mu, privacy = self.plan.mu, self.plan.privacy
        if mu is None:
            return Claim(privacy)
        slack = self.plan.delta_leaked
        if self.leak:
            mu *= math.sqrt(LEAK_FACTOR)
            privacy = Privacy(_epsilon_of(mu, privacy.delta - slack), privacy.delta)
        return Claim(privacy, mu, slack)

    @property
    def names(self) -> list[str]:  # type: ignore[override]
        of_state = ["state", "state alone"] if self.leak else []
        return ["filtered", "block", "running sum", "seed", *of_state]

    @property
    def rows(self) -> int:
        return BEFORE + AFTER + 1

    @property
    def messages(self) -> int:
        return _CELLS * self.rows * self.mechanism.values.dimension

    @property
    def _filter(self) -> Filter | None:
        """Of the noise that is planned, if it is correlated."""
        noise = self.plan.mechanisms[0].noise_share
        return Filter(noise) if isinstance(noise, CorrelatedNoise) else None

    @cached_property
    def _column(self) -> Floats:
        """How far a victim's 1 moves the z_t, from its first block on."""
        count = self.rows - BEFORE
        found = np.zeros(count)
        found[0] = 1.0
        if self._filter is not None:
            found = self._filter.column(count)
        later = [np.concatenate([np.zeros(k), found[: count - k]]) for k in self._offsets]
        return np.asarray(np.sum(later, axis=0))

    @property
    def _offsets(self) -> range:
        return range(self.placement.blocks)

    @cached_property
    def _moves(self) -> dict[int, int]:
        return moves(self.mechanism, self.placement.reports)

    @property
    def _square_move(self) -> int:
        return sum(steps**2 for steps in self._moves.values())

    @property
    def _square_deviation(self) -> float:
        """Of the z_t, with rounding."""
        assert self._filter is not None
        return self._filter.noise.deviation**2 + 1 / 12

    @property
    def expected_mu(self) -> float | None:
        """Of the best statistic: what the victim moves it by, in standard deviations."""
        if self._filter is None:
            return None
        column, square = self._column, self._square_deviation
        moved = float(column @ column) / square
        if self.leak == "after":
            gains = self._filter.gains
            of_state = float(self._filter.weights @ gains**2) / self._filter.noise.step**2
            moved = column[0] ** 2 / square + LEAK_FACTOR * of_state / (square - 1 / 12)
        elif self.leak == "before":
            _, covariance = self._filter.given_state(len(column))
            moved = float(column @ np.linalg.solve(covariance, column))
        return math.sqrt(moved * self._square_move)

    @property
    def spreads(self) -> dict[str, float]:
        """Of statistics that would show if noise were not the plan's, even where it hides as much.

        Less noise is not private, and more noise makes sums worse than the plan says.
        """
        if self._filter is None:
            return {}
        filtered = self._square_deviation * float(self._column @ self._column)
        share = self.plan.mechanisms[0].noise_share
        assert isinstance(share, ServiceNoise)
        whole = float(share.prefix_variance(self.rows))
        return {
            "filtered": filtered * self._square_move, "running sum": whole * self._square_move
        }  # fmt: skip

    def play(self, victim: int, runs: int, random: Random, attempt: int) -> Floats:
        noise, leaked = self._draw(runs, random)
        rows = noise.astype(np.float64)
        for offset in self._offsets:
            rows[BEFORE + offset] = self._show(victim, noise[BEFORE + offset], random)
        seeded = seeded_random(KNOWN_SEED + attempt)
        guess = self._advance(*self._start(runs, seeded), BEFORE + 1)[0][BEFORE]
        found = dict.fromkeys(self.names, np.zeros(runs))
        for coordinate, steps in self._moves.items():
            own = rows[:, :, coordinate]
            filtered = self._filtered(own)
            found["filtered"] = found["filtered"] + steps * (self._column @ filtered[BEFORE:])
            found["block"] = found["block"] + steps * own[BEFORE]
            found["running sum"] = found["running sum"] + steps * own.sum(axis=0)
            found["seed"] = found["seed"] + steps * (own - guess[:, coordinate])[BEFORE]
            if leaked is not None:
                state = leaked.reshape(len(leaked), runs, -1)[:, :, coordinate]
                alone, with_sums = self._read_state(own, filtered, state)
                found["state"] = found["state"] + steps * with_sums
                found["state alone"] = found["state alone"] + steps * alone
        return np.stack(list(found.values()))

    def _draw(self, runs: int, random: Random) -> tuple[Counts, Counts | None]:
        """By block, run and coordinate; and a state, if one leaks."""
        noise, leaked, (state, _) = [], None, self._start(runs, random)
        for blocks, leak in ((BEFORE, "before"), (1, "after"), (AFTER, "")):
            drawn, state = self._advance(state, random, blocks)
            noise.append(drawn)
            if self.leak and leak == self.leak:
                leaked = state.copy()
        return np.concatenate(noise).reshape(self.rows, runs, -1), leaked

    def _start(self, runs: int, random: Random) -> tuple[Counts, Random]:
        share = self.mechanism.noise_share
        assert isinstance(share, ServiceNoise)
        return share.start(random, runs * self.mechanism.values.dimension), random

    def _advance(self, state: Counts, random: Random, blocks: int) -> tuple[Counts, Counts]:
        noise, state = self.mechanism.advance_noise(state, random, blocks)
        return noise.reshape(blocks, -1, self.mechanism.values.dimension), state

    def _show(self, victim: int, noise: Counts, random: Random) -> Floats:
        """What is seen of a block in which the victim is alone: its messages, and this noise."""
        runs, reports = len(noise), self.placement.reports
        alone = self.mechanism.with_users(reports)
        bits = np.full(runs * reports, victim, np.uint8)
        sent = alone.encode_rows(alone.values.opposites(bits), random).gather(reports)
        # A service that lies adds what it likes, and knows what it adds: nothing, in noise.
        added = noise if self.liar == "server" else np.zeros_like(noise)
        shown = shuffle(with_added(sent, alone, added), random)
        sums = alone.step_sums(shown, None if self.liar == "server" else noise)
        return (sums - alone.offset - base(alone)).astype(np.float64)

    def _filtered(self, rows: Floats) -> Floats:
        """The z_t that the blocks follow from, if the victim holds 0."""
        if self._filter is None:
            return rows
        column = self._filter.column(len(rows))
        whole = rows.copy()
        for lag in range(1, len(rows)):
            whole[lag:] += column[lag] * rows[:-lag]
        return whole

    def _read_state(self, rows: Floats, filtered: Floats, state: Counts) -> tuple[Floats, Floats]:
        """What it lacks to what blocks leave there; and the best test with that and with sums."""
        chain = self._filter
        assert chain is not None
        step, until = chain.noise.step, BEFORE + (self.leak == "after")
        lacks = (chain.registers(rows[:until]) - state) / step
        weights = LEAK_FACTOR * chain.weights * chain.gains / step / chain.noise.deviation**2
        alone = np.asarray(weights @ lacks)
        if self.leak == "after":
            return alone, filtered[BEFORE] / self._square_deviation + alone
        of_state, covariance = chain.given_state(self.rows - BEFORE)
        left = filtered[BEFORE:] + step * of_state @ lacks
        return alone, np.asarray(np.linalg.solve(covariance, self._column) @ left)


def _epsilon_of(mu: float, delta: float) -> float:
    """The least epsilon, at this delta, of what is mu-GDP."""
    low, high = 0.0, 1.0
    while gaussian_delta(mu, high) > delta:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(mu, middle) > delta else (low, middle)
    return high


# Planted faults: noise that is not what it should be, though a single block of it is.


class PlainBuffers(CorrelatedNoise):
    """The state is what blocks before leave in it, and nothing else hides what that was."""

    def start(self, random: Random, coordinates: int) -> Counts:
        return np.zeros((len(self.rotations), coordinates), np.int64)

    def advance(
        self, state: Counts, random: Random, blocks: int, clip: Clip | None = None
    ) -> tuple[Counts, Counts]:
        coordinates = state.shape[1]
        drawn = (
            self._samplers[0].draw(random, 2 * blocks * coordinates).reshape(2, blocks, coordinates)
        )
        no_offsets = np.zeros((blocks, 3 * len(state)), np.int64)
        return self._move(
            state, np.zeros_like(drawn[0]), drawn.sum(0), no_offsets, clip, at_once=True
        )


class StateNotAdvanced(CorrelatedNoise):
    """Every block is drawn from the state that was there at first."""

    def advance(
        self, state: Counts, random: Random, blocks: int, clip: Clip | None = None
    ) -> tuple[Counts, Counts]:
        rows = [CorrelatedNoise.advance(self, state, random, 1, clip)[0] for _ in range(blocks)]
        return np.concatenate(rows), state


class RoundedIncrements(CorrelatedNoise):
    """The state has what was not rounded: so the errors of rounding add up to a random walk."""

    def start(self, random: Random, coordinates: int) -> Any:
        return np.zeros((len(self.rotations), coordinates))

    def advance(
        self, state: Any, random: Random, blocks: int, clip: Clip | None = None
    ) -> tuple[Counts, Any]:
        chain, rows = Filter(self), []
        for _ in range(blocks):
            drawn = self._samplers[0].draw(random, 2 * state.shape[1]).reshape(2, -1).sum(axis=0)
            increment = (chain.h @ state + drawn) / self.step
            state = chain.a @ state + np.multiply.outer(chain.gains, increment)
            rows.append(np.rint(increment).astype(np.int64))
        return np.stack(rows), state


class Silent(CorrelatedNoise):
    """No noise at all."""

    def advance(
        self, state: Counts, random: Random, blocks: int, clip: Clip | None = None
    ) -> tuple[Counts, Counts]:
        return np.zeros((blocks, state.shape[1]), np.int64), state


def with_noise_of(kind: type[CorrelatedNoise], mechanism: Mechanism) -> Mechanism:
    """The same with noise of this kind, in the place of the plan's."""
    noise = mechanism.noise_share
    assert isinstance(noise, CorrelatedNoise)
    return replace(mechanism, noise_share=kind(noise.step, noise.rotations, noise.cap))


def clip_tightly(mechanism: Mechanism) -> Mechanism:
    """Ballots with so few dummies that much noise is clipped, which nothing is charged for."""
    bound = max(1, round(_CLIPPED * math.sqrt(mechanism.noise(1).variance)))
    fewer: dict[str, Any] = {"bound": bound, "dummies": 2 * mechanism.values.dimension * bound}
    return replace(mechanism, **fewer)


class BlockFault(NamedTuple):
    """A fault by its name, how it is planted in a game, and in which."""

    name: str
    plant: Callable[[WatchedBlocks], WatchedBlocks]
    is_of_state: bool = False
    """Whether it needs noise that has one."""
    is_of_dummies: bool = False

    def concerns(self, game: WatchedBlocks) -> bool:
        has_state = game.plan.mu is not None or not self.is_of_state
        return has_state and (game.mechanism.adds_messages or not self.is_of_dummies)


def _noise_fault(name: str, kind: type[CorrelatedNoise], **more: Any) -> BlockFault:
    return BlockFault(
        name,
        lambda game: replace(game, mechanism=with_noise_of(kind, game.mechanism), **more),
        is_of_state=True,
    )


def _mechanism_fault(name: str, change: Callable[[Mechanism], Mechanism]) -> BlockFault:
    return BlockFault(name, lambda game: replace(game, mechanism=change(game.mechanism)))


BLOCK_FAULTS = (
    _mechanism_fault("half the variance", lambda right: right.reduce(0.5)),
    _noise_fault("no noise", Silent),
    _noise_fault("plain buffers", PlainBuffers, leak="after"),
    _noise_fault("state not advanced", StateNotAdvanced),
    _noise_fault("increments rounded", RoundedIncrements),
    BlockFault(
        "a message in two blocks", lambda game: replace(game, placement=Placement(blocks=2))
    ),
    BlockFault("noise for one report", lambda game: replace(game, placement=Placement(reports=2))),
    _mechanism_fault("clipping not charged", clip_tightly)._replace(is_of_dummies=True),
)
"""Every one of them must be accused."""
