"""The n - 1 attack on noise of the services: everything is known but one victim and the noise.

One of the services lies, or all else does: it fills the victim's block with what it knows, waits,
and watches the blocks after it, with the best test that there is for Gaussian noise. Or it gets,
once, the state that the other one's noise is kept in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from scipy.linalg import toeplitz
from scipy.optimize import brentq
from scipy.signal import lfilter

from overhand.accounting import gaussian_delta
from overhand.lab.audit.attacks import KNOWN_SEED
from overhand.lab.audit.audit import Claim, Game
from overhand.lab.audit.cases import base, draw_noise, moves
from overhand.lab.audit.faults import halve
from overhand.mechanisms import Mechanism
from overhand.model import Counts, Floats
from overhand.noise import Clip, CorrelatedNoise, ServiceNoise
from overhand.planning import Plan
from overhand.randomness import Random, seeded_random
from overhand.shuffle import shuffle, with_added

BEFORE, AFTER = 3, 44
"""How many blocks are watched before the victim's, and after it."""
LEAK_FACTOR = 2
"""How much more mu^2 one leak of a state costs at most."""
_LEAST_EPSILON = 1e-12  # what needs no more is a guarantee, too
_CELLS = 4  # arrays of a block's size that are in memory
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
        of_kept = toeplitz(by_kept, np.zeros(rows))
        units = self.noise.deviation / math.sqrt(LEAK_FACTOR)  # of what is kept, in steps
        covariance = units**2 * (of_kept @ of_kept.T + np.eye(rows)) + np.eye(rows) / 12
        return np.array(by_state) / self.noise.step, covariance


@dataclass(frozen=True)
class ServicesGame(Game):
    """An attack by one of two services, which knows everything but the other one's secrets."""

    plan: Plan
    mechanism: Mechanism
    """The plan's, or that of a planted fault."""
    leak: Leak = ""

    window: ClassVar[int] = 1
    """How many blocks are watched, from a victim's on."""

    @classmethod
    def of(cls, plan: Plan, **more: Any) -> Self:
        return cls(plan, plan.mechanisms[0], **more)

    @classmethod
    def concerns(cls, plan: Plan) -> bool:
        """Whether it can be played."""
        return True

    @property
    def claim(self) -> Claim:
        """What the plan promises, or, if a state leaked, what follows from it."""
        mu, privacy = self.plan.mu, self.plan.privacy
        if mu is None:
            return Claim(privacy)
        slack = self.plan.delta_leaked
        if self.leak:
            mu *= math.sqrt(LEAK_FACTOR)
            privacy = replace(privacy, epsilon=_epsilon_of(mu, privacy.delta - slack))
        return Claim(privacy, mu, slack)

    @cached_property
    def _filter(self) -> Filter | None:
        """Of the noise that is planned, if it is correlated."""
        noise = self.plan.mechanisms[0].noise_share
        return Filter(noise) if isinstance(noise, CorrelatedNoise) else None

    def _column_of(self, blocks: int) -> Floats:
        return np.eye(1, blocks)[0] if self._filter is None else self._filter.column(blocks)

    def _whiten(self, rows: Floats) -> Floats:
        """The z_t that these blocks follow from, if the victim holds 0."""
        return np.asarray(lfilter(self._column_of(len(rows)), [1.0], rows, axis=0))

    @cached_property
    def _column(self) -> Floats:
        """How far a victim's 1 moves the z_t, from its first block on."""
        return self._column_of(self.window)

    @property
    def _moves(self) -> dict[int, int]:
        return moves(self.mechanism)

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
        moved = float(self._column @ self._column) / self._square_deviation
        return math.sqrt(moved * self._square_move)

    @property
    def spreads(self) -> dict[str, float]:
        """Of statistics that would show if noise were not the plan's, even where it hides as much.

        Less noise is not private, and more noise makes sums worse than the plan says.
        """
        if self._filter is None:
            return {}
        filtered = self._square_deviation * float(self._column @ self._column)
        return {"filtered": filtered * self._square_move}


@dataclass(frozen=True)
class WatchedBlocks(ServicesGame):
    """A victim in a plan of the services, seen by the other service: see the top of this file."""

    liar: Liar = "service"
    placement: Placement = Placement()

    window = AFTER + 1

    @property
    def names(self) -> list[str]:  # type: ignore[override]
        of_state = ["state", "state alone"] if self.leak else []
        return ["filtered", "block", "running sum", "seed", *of_state]

    @property
    def messages(self) -> int:
        return _CELLS * (BEFORE + self.window) * self.mechanism.values.dimension

    @cached_property
    def _column(self) -> Floats:
        everywhere = np.ones(self.placement.blocks)
        return np.convolve(everywhere, super()._column)[: self.window]

    @cached_property
    def _moves(self) -> dict[int, int]:
        return moves(self.mechanism, self.placement.reports)

    @property
    def expected_mu(self) -> float | None:
        if self._filter is None or not self.leak:
            return super().expected_mu
        column = self._column
        if self.leak == "after":
            square, step = self._filter.noise.deviation**2, self._filter.noise.step
            of_state = float(self._filter.weights @ self._filter.gains**2) / step**2
            moved = column[0] ** 2 / self._square_deviation + LEAK_FACTOR * of_state / square
        else:
            _, covariance = self._filter.given_state(len(column))
            moved = float(column @ np.linalg.solve(covariance, column))
        return math.sqrt(moved * self._square_move)

    @property
    def spreads(self) -> dict[str, float]:
        share, filtered = self.plan.mechanisms[0].noise_share, super().spreads
        if not filtered or not isinstance(share, ServiceNoise):
            return {}
        whole = float(share.prefix_variance(BEFORE + self.window))
        return filtered | {"running sum": whole * self._square_move}

    def play(self, victim: int, runs: int, random: Random, attempt: int) -> Floats:
        parts = list(self._draw(runs, random))
        noise = np.concatenate([of_part for of_part, _ in parts])
        rows = noise.astype(np.float64)
        for block in range(BEFORE, BEFORE + self.placement.blocks):
            rows[block] = self._show(victim, noise[block], random)
        _, ((guess,), _) = islice(self._draw(runs, seeded_random(KNOWN_SEED + attempt)), 2)
        found = np.zeros((len(self.names), runs))
        for coordinate, steps in self._moves.items():
            own = rows[:, :, coordinate]
            filtered, block = self._whiten(own), own[BEFORE]
            seen = [self._column @ filtered[BEFORE:], block, own.sum(axis=0)]
            seen.append(block - guess[:, coordinate])
            if self.leak:
                _, state = parts[0 if self.leak == "before" else 1]
                of_coordinate = state.reshape(len(state), runs, -1)[:, :, coordinate]
                seen += self._read_state(own, filtered, of_coordinate)
            found += steps * np.stack(seen)
        return found

    def _draw(self, runs: int, random: Random) -> Iterator[tuple[Counts, Counts]]:
        return draw_noise(self.mechanism, runs, random, BEFORE, 1, AFTER)

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

    def _read_state(self, rows: Floats, filtered: Floats, state: Counts) -> list[Floats]:
        """The best test with sums and what the state lacks to what blocks leave there, and with
        the latter alone.
        """
        chain = self._filter
        assert chain is not None
        step, until = chain.noise.step, BEFORE + (self.leak == "after")
        lacks = (chain.registers(rows[:until]) - state) / step
        weights = LEAK_FACTOR * chain.weights * chain.gains / step / chain.noise.deviation**2
        alone = np.asarray(weights @ lacks)
        if self.leak == "after":
            return [filtered[BEFORE] / self._square_deviation + alone, alone]
        of_state, covariance = chain.given_state(self.window)
        left = filtered[BEFORE:] + step * of_state @ lacks
        return [np.asarray(np.linalg.solve(covariance, self._column) @ left), alone]


def _epsilon_of(mu: float, delta: float) -> float:
    """The epsilon, at this delta, of what is mu-GDP."""
    if gaussian_delta(mu, _LEAST_EPSILON) <= delta:
        return _LEAST_EPSILON
    most = mu**2 / 2 + mu * math.sqrt(-2 * math.log(delta))  # by the tail of a Gaussian
    return float(brentq(lambda epsilon: gaussian_delta(mu, epsilon) - delta, _LEAST_EPSILON, most))


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


def has_state(plan: Plan) -> bool:
    """Whether its noise is correlated over blocks."""
    return plan.mu is not None


def has_dummies(plan: Plan) -> bool:
    return plan.mechanisms[0].adds_messages


@dataclass(frozen=True)
class ServicesFault:
    """A fault of the services' noise: the game that shows it, and how it is planted there."""

    game: type[ServicesGame]
    change: Callable[[Mechanism], Mechanism] = lambda right: right
    needs: Callable[[Plan], bool] = lambda plan: True
    """Plans that can have it."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Of the game."""

    def concerns(self, plan: Plan) -> bool:
        return self.needs(plan) and self.game.concerns(plan)

    def of(self, plan: Plan) -> ServicesGame:
        right = self.game.of(plan, **self.fields)
        return replace(right, mechanism=self.change(right.mechanism))


_in_blocks = partial(ServicesFault, WatchedBlocks)

BLOCK_FAULTS: dict[str, ServicesFault] = {
    "half the variance": _in_blocks(halve),
    "no noise": _in_blocks(partial(with_noise_of, Silent), has_state),
    "plain buffers": _in_blocks(partial(with_noise_of, PlainBuffers), has_state, {"leak": "after"}),
    "state not advanced": _in_blocks(partial(with_noise_of, StateNotAdvanced), has_state),
    "increments rounded": _in_blocks(partial(with_noise_of, RoundedIncrements), has_state),
    "a message in two blocks": _in_blocks(fields={"placement": Placement(blocks=2)}),
    "noise for one report": _in_blocks(fields={"placement": Placement(reports=2)}),
    "clipping not charged": _in_blocks(clip_tightly, has_dummies),
}
"""Every one of them must be accused."""
