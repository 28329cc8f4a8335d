"""Run a counter on a stream, many times, and measure every error."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from overhand import errors
from overhand.lab.simulation.counts import CountsRun
from overhand.lab.simulation.messages import MessagesRun
from overhand.lab.simulation.streams import Stream, plan_stream, stream_for, values_stream
from overhand.model import Counts, Floats, Rows
from overhand.planning import Plan
from overhand.randomness import Random, SeededRandom
from overhand.sums import ContinualSum, Pending
from overhand.values import Values

if TYPE_CHECKING:
    from overhand.lab.baselines import LocalSum, SquareRoot

Engine = Literal["counts", "messages"]
"""Draw the noise of a batch at once, or make, permute and analyze every message of it."""
ENGINES: tuple[Engine, ...] = ("counts", "messages")
"""Both, the quicker one first."""

_CHUNK = 1 << 18
_CURVE_POINTS = 400


class CounterRun(Protocol):
    """One pass over a stream."""

    @property
    def granularity(self) -> int:
        """Values come in multiples of it, except for the last."""

    def estimates(self, rows: Rows) -> Floats:
        """The estimates after each of the next users, whose values were checked."""


Counter: TypeAlias = "Plan | LocalSum | SquareRoot"
"""What publishes running sums: a plan, or a baseline that has the same numbers."""


def start_run(
    counter: Counter, random: Random, engine: Engine = "counts", pending: Pending = "middle"
) -> CounterRun:
    """A run of a plan, by one of the engines, or of a baseline.

    Both engines have one law; one of them draws noise, the other sends every message:

    >>> import overhand as oh
    >>> plan = oh.Plan.best(300, shufflers=2, privacy=oh.Privacy(1.0, 1e-6), tree="paper")
    >>> for engine in ENGINES:
    ...     error = simulate(plan, "ones", runs=30, engine=engine).rms_error
    ...     print(engine, 0.8 < error / plan.rms_error < 1.2)
    counts True
    messages True
    """
    errors.one_of("engine", engine, ENGINES)
    if not isinstance(counter, Plan):
        if (engine, pending) != ("counts", "middle"):
            raise errors.InvalidValue(f"{engine=} and {pending=} are for a plan")
        return counter.start(random)
    if pending == "middle":
        return (CountsRun if engine == "counts" else MessagesRun)(counter, random)
    if engine != "counts":
        raise errors.InvalidValue(f"{pending=} needs engine='counts'")
    return _SessionRun(counter, random, pending)


class _SessionRun:
    """One run of the library's own sum, for what the engines do not know.

    Between the ends of blocks, an estimate rises by the same for every user who is pending.
    """

    def __init__(self, plan: Plan, random: Random, pending: Pending) -> None:
        self.granularity = plan.tree.lowest
        self._shape = plan.values.shape
        self._total = ContinualSum(plan, random, pending=pending)

    def estimates(self, rows: Rows) -> Floats:
        found = np.empty((len(rows), *self._shape))
        for start in range(0, len(rows), self.granularity):
            block, before = rows[start : start + self.granularity], self._total.estimate.value
            self._total.update_rows(block[:1])
            rise, users = self._total.estimate.value - before, np.arange(1, len(block) + 1)
            found[start : start + len(block)] = before + np.multiply.outer(users, rise)
            self._total.update_rows(block[1:])
            found[start + len(block) - 1] = self._total.estimate.value
        return found


@dataclass(frozen=True)
class ErrorCurve:
    """Root mean square error of the runs, around these times."""

    t: Counts
    rms: Floats


@dataclass(frozen=True)
class Simulation:
    """Every error of every run, summarised: errors per coordinate.

    >>> import overhand as oh
    >>> plan = oh.Plan.best(300, shufflers=2, privacy=oh.Privacy(1.0, 1e-6), tree="paper")
    >>> result = simulate(plan, "ones", runs=20)
    >>> result.runs, result.users, result.max_error < plan.error_bound(1e-3)
    (20, 300, True)
    >>> result.rms_error < result.mean_max_error <= result.max_error
    True
    """

    runs: int
    users: int
    rms_error: float
    max_error: float
    mean_max_error: float
    seconds: float
    users_per_second: float
    curve: ErrorCurve = field(repr=False)

    def summary(self) -> dict[str, Any]:
        """What `overhand lab simulate --json` prints."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "curve"}


def estimate_all(
    plan: Plan, values: ArrayLike, random: Random, *, engine: Engine = "counts"
) -> Floats:
    """The estimates after every user, at once.

    >>> import overhand as oh
    >>> plan = oh.Plan.best(horizon=1000, shufflers=2, privacy=oh.Privacy(1.0, 1e-6))
    >>> estimate_all(plan, [1] * 1000, oh.seeded_random(1)).shape
    (1000,)
    """
    rows = plan.values.rows(values)
    if len(rows) > plan.most_users:
        raise errors.InvalidValue(f"{len(rows)} values exceed the horizon {plan.most_users}")
    run = start_run(plan, random, engine)
    if plan.values.is_scalar:
        return run.estimates(rows)
    result = np.empty((len(rows), plan.values.dimension))
    for start, stop in _parts(len(rows), run, plan.values):
        result[start:stop] = run.estimates(rows[start:stop])
    return result


def _parts(users: int, run: CounterRun, values: Values) -> Iterator[tuple[int, int]]:
    """Stretches of users that a run takes at once: whole blocks, that fit the cache."""
    blocks = max(1, _CHUNK // (run.granularity * values.dimension))
    chunk = blocks * run.granularity
    for start in range(0, users, chunk):
        yield start, min(start + chunk, users)


def simulate(
    counter: Counter,
    input: str | Stream | ArrayLike = "zeros",
    *,
    runs: int = 1,
    seed: int = 0,
    engine: Engine = "counts",
    pending: Pending = "middle",
    progress: Callable[[int], None] | None = None,
) -> Simulation:
    """Run a plan (or a baseline) on a stream and measure the error of every estimate.

    Memory does not grow with the horizon. Run r draws from the stream with seed (seed, r), so a
    longer simulation begins with the same runs. `progress` is called with numbers of users done.
    `pending` is as in `ContinualSum`: whether "rate" pays depends on the stream. A plan whose noise
    the services make also takes a stream of more users than it expects.

    >>> import overhand as oh
    >>> plan = oh.Plan.best(300, shufflers=2, privacy=oh.Privacy(1.0, 1e-6), tree="paper")
    >>> measured = simulate(plan, "ones", runs=100).rms_error
    >>> 0.9 < measured / plan.rms_error < 1.1
    True

    Three that hide the same bits: nobody is trusted, three shufflers are, a server is.

    >>> from overhand.lab.baselines import SquareRoot, local_counter
    >>> privacy = oh.Privacy(1.0, 1e-6)
    >>> ours = oh.Plan.best(10_000, shufflers=3, privacy=privacy, tree="paper")
    >>> local = local_counter(10_000, privacy, ours.values)
    >>> [round(one.rms_error, 1) for one in (local, ours, SquareRoot(10_000, privacy))]
    [67.9, 31.2, 16.2]
    """
    runs = errors.whole("runs", runs, least=1)
    errors.whole("seed", seed, least=0)
    if isinstance(input, Stream):
        stream = input
    elif not isinstance(input, str):
        stream = values_stream(counter.values.rows(input))
    elif isinstance(counter, Plan):
        stream = plan_stream(input, counter)
    else:
        stream = stream_for(input, counter.horizon, values=counter.values)
    most = counter.most_users if isinstance(counter, Plan) else counter.horizon
    if not 0 < stream.users <= most:
        raise errors.InvalidValue(f"{stream.users} values for a horizon of {most}")
    tally = _Tally(stream.users, counter.values)
    started = time.perf_counter()
    for run in range(runs):
        values, noise = SeededRandom(np.random.default_rng([seed, run])).spawn(2)
        tally.add(start_run(counter, noise, engine, pending), stream.parts(values), progress)
    return tally.result(time.perf_counter() - started)


class _Tally:
    """Sums of squared errors, and the largest, over time, coordinates and runs."""

    def __init__(self, users: int, values: Values) -> None:
        self._users = users
        self._values = values
        self._bins = np.unique(np.linspace(0, users, _CURVE_POINTS + 1).astype(np.int64))
        self._squares = np.zeros(len(self._bins) - 1)
        self._largest: list[float] = []

    def add(
        self,
        run: CounterRun,
        part: Callable[[int, int], Rows],
        progress: Callable[[int], None] | None,
    ) -> None:
        true_sum: Any = 0
        largest = 0.0
        for start, stop in _parts(self._users, run, self._values):
            rows = part(start, stop)
            error = run.estimates(rows)
            truth = self._values.running_sums(rows)
            truth += true_sum
            true_sum = truth[-1].copy()
            error = np.subtract(error, truth)
            largest = max(largest, float(error.max()), -float(error.min()))
            np.square(error, out=error)
            squares = error if error.ndim == 1 else error.mean(axis=1)
            first = int(np.searchsorted(self._bins, start, side="right")) - 1
            last = int(np.searchsorted(self._bins, start + len(squares), side="left"))
            edges = np.maximum(self._bins[first:last] - start, 0)
            self._squares[first:last] += np.add.reduceat(squares, edges)
            if progress is not None:
                progress(len(rows))
        self._largest.append(largest)

    def result(self, seconds: float) -> Simulation:
        runs = len(self._largest)
        rms = np.sqrt(self._squares / (np.diff(self._bins) * runs))
        return Simulation(
            runs=runs,
            users=self._users,
            rms_error=math.sqrt(float(self._squares.sum()) / (self._users * runs)),
            max_error=max(self._largest),
            mean_max_error=float(np.mean(self._largest)),
            seconds=seconds,
            users_per_second=self._users * runs / seconds,
            curve=ErrorCurve(self._bins[1:], rms),
        )
