"""The paper, executable: slow, exact, in its own order, and importing nothing of ours.

Tenenbaum, Kaplan, Mansour and Stemmer, "Concurrent Shuffle Differential Privacy Under Continual
Observation" (ICML 2023). Read this first: the other modules are parts of it made fast, and
`test_reference.py` compares each of them with the part that it is. What they do beyond the paper,
and what is printed wrong in it, is in `docs/paper.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial, reduce
from itertools import accumulate, combinations_with_replacement
from operator import add, mul
from random import Random
from typing import NamedTuple, Protocol

Vector = Sequence[float]  # a user's value, or a sum: a number is a vector of one coordinate
Message = tuple[int, int]  # a coordinate and a bit: nothing else ever leaves a user's device
Law = dict[Fraction, Fraction]  # what a random number can be, and how likely
Arms = Sequence[Vector]  # the features phi(c, a) of the actions that a user can choose from
HALF = Fraction(1, 2)
ZERO: Law = {Fraction(0): Fraction(1)}  # a number that is certainly 0


# Section 2.3, the shuffle model: a batch of users, a shuffler, a server.
@dataclass(frozen=True)
class Mechanism:
    """A shuffle mechanism (E, m) for sums: the encoder E of one user, and the batch size m.

    A coordinate between `low` and `high` is rounded at random to a whole number of `steps`, and
    sent in unary, bit by bit. The noise is a few coins that every user tosses and sends as well;
    `coins` are their chances of showing 1. Once shuffled, nobody can tell coins from values.

    >>> mechanism, random = Mechanism(size=3, coins=(HALF, HALF)), Random(1)
    >>> batch = [message for bit in (1, 0, 1) for message in mechanism.encode([bit], random)]
    >>> len(batch), mechanism.analyze(shuffle(batch, random))
    (9, [2.0])
    """

    size: int
    coins: tuple[Fraction, ...]
    steps: int = 1
    low: int = 0
    high: int = 1

    def encode(self, value: Vector, random: Random) -> list[Message]:
        """E(b): the messages of a user who holds this value."""
        messages: list[Message] = []
        for coordinate, number in enumerate(value):
            ones, rest = divmod(self.to_steps(number), 1)
            ones += random.random() < rest
            bits = [i < ones for i in range(self.steps)] + [random.random() < p for p in self.coins]
            messages += [(coordinate, int(bit)) for bit in bits]
        return messages

    def analyze(self, shuffled: Sequence[Message]) -> list[float]:
        """An unbiased estimate of the sum: count the ones, and subtract what coins add."""
        last, _ = max(shuffled)
        counts = [sum(bit for at, bit in shuffled if at == j) for j in range(last + 1)]
        return [float(self.to_sum(ones)) for ones in counts]

    def to_steps(self, number: float) -> Fraction:
        """How many steps a number is above the lowest one, not rounded yet."""
        return self.steps * (Fraction(number) - self.low) / (self.high - self.low)

    def to_sum(self, ones: int | Fraction) -> Fraction:
        """The sum that a number of ones stands for."""
        steps = ones - self.size * sum(self.coins, Fraction(0))
        return steps * (self.high - self.low) / self.steps + self.size * self.low


def shuffle(messages: Sequence[Message], random: Random) -> list[Message]:
    """S: all messages of a batch in uniformly random order."""
    return random.sample(messages, len(messages))


def binary_summation(size: int, epsilon: float, delta: float) -> Mechanism:
    """M_bin of Corollaries 3.3 and 3.5, which is Algorithm 3 of Tenenbaum et al. (2021)."""
    tau = 96 * math.log(2 / delta) / epsilon**2
    fair, rare = (HALF,) * math.ceil(tau / size), (Fraction(tau / (2 * size)),)
    return Mechanism(size, fair if size < tau else rare)


# Section 3, the concurrent shuffle model: k shufflers, each with a batch of its own.
class Server(Protocol):
    """It gives mechanisms to idle shufflers and sees their batches when full: never a value."""

    def activate(self, t: int, idle: set[int]) -> dict[int, Mechanism]: ...
    def receive(self, t: int, shuffler: int, shuffled: list[Message]) -> None: ...
    def estimate(self, t: int) -> Vector: ...


def concurrent_shuffle(
    values: Iterable[Vector], k: int, server: Server, random: Random
) -> Iterator[Vector]:
    """Algorithm 1, under any server: an estimate after every user."""
    active: dict[int, tuple[Mechanism, list[list[Message]]]] = {}  # by shuffler, a list per user
    for t, value in enumerate(values, start=1):
        idle = set(range(k)).difference(active)
        for i, mechanism in server.activate(t, idle).items():  # step 1
            assert i in idle, f"shuffler {i} is not idle"
            active[i] = mechanism, []
        for i, (mechanism, batch) in sorted(active.items()):
            batch.append(mechanism.encode(value, random))  # step 2
            if len(batch) == mechanism.size:  # step 3
                del active[i]
                server.receive(t, i, shuffle(sum(batch, []), random))
        yield server.estimate(t)  # step 4


# Sections 3.1 and 3.2, the tree: which users are in which batches.
class Node(NamedTuple):
    """v_i^j: the batch of users i to j, counted from 1. Level 1 is right above the leaves."""

    level: int
    first: int
    last: int


@dataclass(frozen=True)
class Tree:
    """Over users 1 .. n, by the number of children of a node at each level, lowest level first.

    Every node but the root is a batch, and every level has a shuffler. Figure 2:

    >>> [[v[1:] for v in Tree(8, (2, 2)).cover(t)] for t in (6, 7, 8)]
    [[(1, 4), (5, 6)], [(1, 4), (5, 6)], [(1, 4), (5, 8)]]
    """

    n: int
    degrees: tuple[int, ...]

    @cached_property
    def nodes(self) -> list[Node]:
        """All batches that become full."""
        return [
            Node(level, last - size + 1, last)
            for level, size in enumerate(accumulate(self.degrees, mul), start=1)
            for last in range(size, self.n + 1, size)
        ]

    def cover(self, t: int) -> list[Node]:
        """V*_t of Definition 3.1: the highest nodes of which all users have arrived."""
        full = [v for v in self.nodes if v.last <= t]
        highest = {max(u for u in full if u.first <= v.first <= u.last) for v in full}
        return sorted(highest, key=lambda v: v.first)


def binary_degrees(n: int) -> tuple[int, ...]:
    """Section 3.1: a binary tree has log n - 1 levels between its leaves and its root."""
    return (2,) * max(1, math.ceil(math.log2(n)) - 1)


def published_degrees(n: int, k: int) -> tuple[int, ...]:
    """Section 3.2: d_low = n^(1/(2k+1)), then d = d_low^2; as many of k levels as fit."""
    d_low = max(2, round(n ** (1 / (2 * k + 1))))
    levels = [(d_low, *[d_low**2] * above) for above in range(k)]
    return max(degrees for degrees in levels if degrees == (d_low,) or math.prod(degrees) <= n)


# Theorems 3.2 and 3.4: the laws of sums and estimates, and what all batches of a user cost.
def combine(operation: Callable[[Fraction, Fraction], Fraction], one: Law, other: Law) -> Law:
    """The law of the sum, or product, of two independent numbers."""
    law: Law = {}
    for x, p in one.items():
        for y, q in other.items():
            law[operation(x, y)] = law.get(operation(x, y), Fraction(0)) + p * q
    return law


def variance(law: Law) -> Fraction:
    mean = sum(x * p for x, p in law.items())
    return sum(((x - mean) ** 2 * p for x, p in law.items()), Fraction(0))


def ones_law(chances: Iterable[Fraction]) -> Law:
    """How many coins show 1, by the chance that each of them does."""
    coins = ({Fraction(0): 1 - p, Fraction(1): p} for p in chances)
    return reduce(partial(combine, add), coins, ZERO)


def sum_law(mechanism: Mechanism, column: Vector) -> Law:
    """What `analyze` says, for one coordinate of these users' values: rounding, and coins."""
    steps = [mechanism.to_steps(number) for number in column]
    law = ones_law([*(s % 1 for s in steps), *mechanism.coins * mechanism.size])
    return {mechanism.to_sum(x + sum(s // 1 for s in steps)): p for x, p in law.items()}


def estimate_law(tree: Tree, mechanisms: Sequence[Mechanism], column: Vector, t: int) -> Law:
    """What Algorithms 2 and 3 publish at t: the batches of V*_t are independent."""
    laws = (sum_law(mechanisms[v.level - 1], column[v.first - 1 : v.last]) for v in tree.cover(t))
    return reduce(partial(combine, add), laws, ZERO)


def composed_delta(mechanisms: Sequence[Mechanism], epsilon: float) -> float:
    """The least delta at this epsilon for a user who is in one batch of each mechanism.

    Another value moves every count up, or every count down: P is the law of what is seen then, and
    Q that of before. Delta is the mean of max(0, 1 - e^epsilon Q/P) under P. The ratios of batches
    are multiplied, which adds up their logarithms, the privacy losses.

    >>> [round(composed_delta([Mechanism(10, (HALF,))] * k, epsilon=1.0), 3) for k in (1, 2)]
    [0.025, 0.095]
    """
    deltas: list[float] = []
    for way in (1, -1):
        ratios = {Fraction(1): Fraction(1)}
        for mechanism in mechanisms:
            noise, own = ones_law(mechanism.coins * mechanism.size), Law()
            for x, p in noise.items():
                ratio = noise.get(x + way * mechanism.steps, Fraction(0)) / p
                own[ratio] = own.get(ratio, Fraction(0)) + p
            ratios = combine(mul, ratios, own)
        deltas.append(sum(p * max(0.0, 1 - math.exp(epsilon) * r) for r, p in ratios.items()))
    return max(deltas)


# Section 3.1, Algorithm 2 (binary degrees), and Section 3.2, Algorithm 3 (those published).
class TreeServer:
    """The server of private sums: it adds up the fewest batches that hold all users so far.

    >>> server = TreeServer(Tree(40, (2, 3)), [Mechanism(size, (HALF, HALF)) for size in (2, 6)])
    >>> *_, last = concurrent_shuffle([[1]] * 40, 2, server, Random(1))
    >>> last, float(variance(estimate_law(server.tree, server.mechanisms, [1] * 40, 40)))
    ([41.0], 20.0)
    """

    def __init__(self, tree: Tree, mechanisms: Sequence[Mechanism], dimension: int = 1) -> None:
        self.tree, self.mechanisms, self.dimension = tree, mechanisms, dimension
        self.sums: dict[Node, Vector] = {}

    def activate(self, t: int, idle: set[int]) -> dict[int, Mechanism]:
        """Step 1: each node that user t is the first of, at the shuffler of its level."""
        return {v.level - 1: self.mechanisms[v.level - 1] for v in self.tree.nodes if v.first == t}

    def receive(self, t: int, shuffler: int, shuffled: list[Message]) -> None:
        """Step 4: S_v, v being the node of this level that user t is the last of."""
        (v,) = (v for v in self.tree.nodes if (v.level, v.last) == (shuffler + 1, t))
        self.sums[v] = self.mechanisms[shuffler].analyze(shuffled)

    def estimate(self, t: int) -> list[float]:
        """Step 5: the sum over V*_t. Users whose batch is not full yet count as 0."""
        sums = [self.sums[v] for v in self.tree.cover(t)]
        return [sum(s[j] for s in sums) for j in range(self.dimension)]


# Section 4, the lower bound.
def rep_and_big(n: float, k: int, epsilon: float) -> tuple[float, float]:
    """Theorem 4.1: k shufflers err by the order of rep_{n,k}, and k - 1 in a batch of Big_{n,k}."""
    c, power = math.exp(epsilon) / (math.exp(2 * epsilon) + 1), 1 / (2 * k + 1)
    return n**power * c ** (2 * k * power) / 2, n ** ((2 * k - 1) * power) * c ** (2 * power)


def hard_input(n: int, copies: int, prefix: Sequence[int], random: Random) -> list[int]:
    """Delta_{n,k}: a prefix, then a fair bit and rep_{n,k} copies of another, over and over."""
    bits = ([random.getrandbits(1)] + copies * [random.getrandbits(1)] for _ in range(n))
    return sum(bits, list(prefix))[:n]


# Section 5 and Appendix C, contextual linear bandits.
def dot(x: Vector, y: Vector) -> float:
    return sum(a * b for a, b in zip(x, y, strict=True))


def inverse(matrix: Sequence[Vector]) -> list[list[float]]:
    """By elimination, without looking for pivots: the matrix is positive definite."""
    d = len(matrix)
    rows = [[*row, *(float(i == j) for j in range(d))] for i, row in enumerate(matrix)]
    for i in range(d):
        rows[i] = [number / rows[i][i] for number in rows[i]]
        for j in set(range(d)) - {i}:
            rows[j] = [a - rows[j][i] * b for a, b in zip(rows[j], rows[i], strict=True)]
    return [row[d:] for row in rows]


def report(x: Vector, y: float) -> list[float]:
    """x y, and x x^T on and above its diagonal: what a user adds to the sums."""
    return [*(a * y for a in x), *(a * b for a, b in combinations_with_replacement(x, 2))]


class BanditServer(TreeServer):
    """The server of Algorithm 4, if no entry of its sums is ever off by more than `error`."""

    def __init__(self, tree: Tree, mechanisms: Sequence[Mechanism], d: int, error: float) -> None:
        super().__init__(tree, mechanisms, dimension=d + d * (d + 1) // 2)
        self.d, self.shift = d, 2 * error * d  # lambda = 2 sigma' d of Theorem C.3

    def policy(self, t: int) -> Callable[[Vector], float]:
        """Steps 7 and 2: the score by which users choose, of the features of an action."""
        sums, d, shift = self.estimate(t), range(self.d), self.shift
        entries = dict(zip(combinations_with_replacement(d, 2), sums[self.d :], strict=True))
        v = inverse([[entries[min(i, j), max(i, j)] + shift * (i == j) for j in d] for i in d])
        theta = [dot(row, sums[: self.d]) for row in v]
        # beta_t of Theorem C.3, with alpha = 1 / n, and sigma = 1/2 for rewards in [0, 1]
        ellipsoid = 2 * math.log(2 * self.tree.n) + self.d * math.log(3 + 2 * t / (self.d * shift))
        beta = math.sqrt(ellipsoid) / 2 + math.sqrt(3 * shift / 2) + math.sqrt(shift / 2)
        return lambda x: dot(x, theta) + beta * math.sqrt(dot(x, [dot(row, x) for row in v]))


def play(
    users: Sequence[Arms], reward: Callable[[Vector], float], server: BanditServer, random: Random
) -> list[Vector]:
    """Algorithm 4: the features of what each user chooses."""
    chosen: list[Vector] = []

    def values() -> Iterator[Vector]:
        for t, arms in enumerate(users, start=1):
            chosen.append(max(arms, key=server.policy(t - 1)))  # steps 2 and 3
            yield report(chosen[-1], reward(chosen[-1]))  # steps 4 and 5

    list(concurrent_shuffle(values(), len(server.mechanisms), server, random))  # steps 1, 6, 7
    return chosen
