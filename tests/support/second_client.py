"""A second client, by docs/protocol.md: plain integers, one value at a time.

It imports nothing of ours, and does things in other ways than the code: coins bit by bit, the Polya
law by decimal numbers, values in Python's own floats.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import math
import secrets
import struct
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from support.hpke import seal

SQRT2 = math.sqrt(2)


class Refused(ValueError):
    """A document or a value that is not as the protocol says."""


class Kind(NamedTuple):
    """A kind of value: its bounds by coordinate, and how a value becomes a point."""

    lows: list[float]
    highs: list[float]
    is_whole: bool
    point: Callable[[Any], list[Any]]
    are_halves: bool = False
    """Whether a coordinate of the second half has the steps that one of the first has not."""


class Draws:
    """All that is chance, from the operating system."""

    def rounding(self) -> int:
        return secrets.randbits(53)

    def share(self, bits: int) -> int:
        return secrets.randbits(bits)

    def seed(self) -> bytes:
        return secrets.token_bytes(16)

    def coin(self, numerator: int, bits: int) -> int:
        """From the highest bit down: the first that differs decides."""
        for place in reversed(range(bits)):
            drawn, due = secrets.randbits(1), numerator >> place & 1
            if drawn != due:
                return due
        return 0

    def coins(self, noise: dict[str, Any]) -> list[int]:
        (numerator, bits), count = noise["probability"], noise["bits"]
        half = count // 2 if noise["opposed"] else count
        first = [self.coin(numerator, bits) for _ in range(half)]
        return first + [self.coin((1 << bits) - numerator, bits) for _ in range(count - half)]

    def noise(self, noise: dict[str, Any]) -> int:
        if "bits" in noise:
            coins = self.coins(noise)
            return sum(coins) - len(coins) // 2
        shape = Fraction(noise["shape"], noise["users"])
        thresholds = polya(shape, float.fromhex(noise["ratio"]))
        first, second = (bisect.bisect(thresholds, secrets.randbits(128)) for _ in "xy")
        return first - second


@cache
def polya(shape: Fraction, ratio: float) -> list[int]:
    """Thresholds of 128 bits: so many of them a random number passes, so much is drawn."""
    with localcontext() as context:
        context.prec = 120
        r, s = Decimal(ratio), Decimal(shape.numerator) / shape.denominator
        probability, left, found = (1 - r) ** s, Decimal(1), list[Decimal]()
        while left >= Decimal(2) ** -110:
            found.append(probability)
            left -= probability
            x = len(found) - 1
            probability *= r * (x + s) / (x + 1)
        return [int(total * 2**128) for total in accumulate(found[:-1])]


def kind_of(spec: str, clip: bool) -> Kind:
    name, *words = spec.split(":")
    if name == "grouped":
        return _grouped(words, clip)
    if name == "binned":
        return _binned(words, clip)
    if name == "histogram" and not words[0].isdecimal():
        return _labelled(words)
    numbers = [float(word) for word in words]
    if name == "bit" and not numbers:
        return Kind([0.0], [1.0], True, lambda value: [_whole(value, 1)])
    if name == "real":
        low, high = numbers or (0.0, 1.0)
        return Kind([low], [high], False, lambda value: [_within(value, low, high, clip)])
    if name == "histogram":
        buckets = int(numbers[0])
        return Kind(
            [0.0] * buckets,
            [1.0] * buckets,
            True,
            lambda value: [int(_whole(value, buckets - 1) == j) for j in range(buckets)],
        )
    size, norm = int(numbers[0]), numbers[1] if len(numbers) > 1 else 1.0
    if name == "vector":
        return Kind([-norm] * size, [norm] * size, False, lambda v: _short(v, norm, clip))
    if name == "matrix":
        ends = [norm] * (size * (size + 1) // 2)
        return Kind([-end for end in ends], ends, False, lambda m: _triangle(_even(m, norm, clip)))
    if name == "regression":
        off = 0.5 * SQRT2
        square = [[1.0 if i == j else 0.5 for j in range(size)] for i in range(size)]
        highs = [1.0] * size + _triangle(square)
        lows = [-1.0] * size + [0.0 if high > off else -high for high in highs[size:]]
        return Kind(lows, highs, False, lambda row: _moments(row, clip))
    raise Refused(f"values {spec!r}")


def _labelled(words: list[str]) -> Kind:
    place, count = _places(words)
    return kind_of(f"histogram:{count}", False)._replace(
        point=lambda label: [int(place(label) == j) for j in range(count)]
    )


def _places(words: list[str]) -> tuple[Callable[[Any], int], int]:
    """Where a label is among the first word's, or behind them if the second names all others."""
    labels = words[0].split(",")

    def place(label: Any) -> int:
        if label not in labels and not (len(words) > 1 and isinstance(label, str)):
            raise Refused(f"{label!r} is none of the labels")
        return labels.index(label) if label in labels else len(labels)

    return place, len(labels) + len(words) - 1


def _binned(words: list[str], clip: bool) -> Kind:
    edges = [float(edge) for edge in words[0].split(",")]
    if len(words) == 3:
        low, high, bins = float(words[0]), float(words[1]), int(words[2])
        edges = [*(i * ((high - low) / bins) + low for i in range(bins)), high]

    def point(value: float) -> list[int]:
        within = _within(value, edges[0], edges[-1], clip)
        place = min(bisect.bisect(edges, within), len(edges) - 1)
        return [int(place == j) for j in range(1, len(edges))]

    return kind_of(f"histogram:{len(edges) - 1}", False)._replace(point=point)


def _grouped(words: list[str], clip: bool) -> Kind:
    at = next(i for i, word in enumerate(words) if i and word in ("bit", "real"))
    (place, count), number = _places(words[:at]), kind_of(":".join(words[at:]), clip)
    low, high = number.lows[0], number.highs[0]

    def point(value: Any) -> list[Any]:
        (held,), found = number.point(value[1]), [0] * 2 * count
        share = held if number.is_whole else (held - low) / (high - low)
        found[place(value[0])], found[place(value[0]) + count] = share, 1 - share
        return found

    return Kind([0.0] * 2 * count, [1.0] * 2 * count, number.is_whole, point, not number.is_whole)


def _whole(value: Any, most: int) -> int:
    if not isinstance(value, int) or not 0 <= value <= most:
        raise Refused(f"{value!r} is not a whole number from 0 to {most}")
    return int(value)


def _within(value: float, low: float, high: float, clip: bool) -> float:
    if not math.isfinite(value) or not (clip or low <= value <= high):
        raise Refused(f"{value!r} is not from {low} to {high}")
    return min(max(float(value), low), high)


def _short(vector: list[float], norm: float, clip: bool) -> list[float]:
    length = math.hypot(*vector)
    if not math.isfinite(length) or (length > norm * (1 + 1e-6) and not clip):
        raise Refused(f"a norm of {length}, above {norm}")
    return [x * (norm / length) for x in vector] if length > norm else list(map(float, vector))


def _even(matrix: list[list[float]], norm: float, clip: bool) -> list[list[float]]:
    side = range(len(matrix))
    flat = _short([x for row in matrix for x in row], norm, clip)
    rows = [flat[i * len(side) : (i + 1) * len(side)] for i in side]
    return [[(rows[i][j] + rows[j][i]) / 2 for j in side] for i in side]


def _triangle(matrix: list[list[float]]) -> list[float]:
    side = range(len(matrix))
    return [matrix[i][j] if i == j else matrix[i][j] * SQRT2 for i in side for j in side if i <= j]


def _moments(row: list[float], clip: bool) -> list[float]:
    x, (y,) = _short(row[:-1], 1.0, clip), _short(row[-1:], 1.0, clip)
    return [one * y for one in x] + _triangle([[one * other for other in x] for one in x])


class Part(NamedTuple):
    """What a level sends."""

    messages: list[bytes]
    clear: list[int]
    clear_bytes: int


class SecondClient:
    """Makes reports for a document, whose digest it was given."""

    def __init__(self, document: bytes, digest: str) -> None:
        if hashlib.sha256(document).hexdigest() != digest:
            raise Refused("not the pinned document")
        saved = json.loads(document)
        if (saved["version"], saved["plan"]["format"]) != (3, 5):
            raise Refused("another version")
        self.plan, self.digest = saved["plan"], bytes.fromhex(digest)
        self.key = bytes.fromhex(saved["public_key"])
        if hashlib.sha256(self.key).hexdigest()[:16] != saved["key_id"]:
            raise Refused("another key")
        self.learning: dict[str, Any] | None = saved.get("learning")
        values = self.plan["values"]
        self.kind = kind_of(values["kind"], values["clip"])

    def info(self, level: int) -> bytes:
        return b"overhand/3" + self.digest + bytes([level])

    def report(self, value: Any) -> bytes:
        levels = range(1, 1 + len(self.plan["mechanisms"]))
        parts = [self.encoded(level, value, Draws()) for level in levels]
        return self.framed(parts, secrets.token_bytes(16), lambda *_: secrets.token_bytes(32))

    def moments(self, features: list[float], reward: float) -> list[float]:
        """What a user of a recommender holds: the features of the arm it took, and a response."""
        assert self.learning is not None
        constant = self.learning.get("constant")
        if constant is None:
            return [*features, reward]
        small = min(constant, 0.5)
        larger = math.sqrt((1 - small * small) / (1 - constant * constant))
        others = [x * larger for x in features[1:]]
        return [features[0] * (small / constant), *others, 2 * reward - 1]

    def arm(self, policy: str, contexts: list[list[float]]) -> int:
        """What a policy takes, if it was signed for this document; else an error of any kind."""
        assert self.learning is not None
        saved, size = json.loads(policy), self.learning["dimension"]
        theta, width = saved["theta"], saved["width"]
        if bytes.fromhex(saved["document"]) != self.digest or saved["number"] < 1:
            raise Refused("a policy of another document, or of no number")
        if [len(theta), *map(len, width)] != [size] * (size + 1):
            raise Refused("a policy of another dimension")
        numbers = [*theta, *(x for row in width for x in row)]
        head = struct.pack("<QQI", saved["number"], saved["users"], size)
        signed = (
            b"overhand policy 1\0" + self.digest + head + struct.pack(f"<{len(numbers)}d", *numbers)
        )
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.learning["policy_key"]))
        key.verify(bytes.fromhex(saved["signature"]), signed)
        side = range(size)
        scores = [
            sum(theta[i] * x[i] for i in side)
            + math.hypot(*(sum(width[i][k] * x[i] for i in side) for k in side))
            for x in contexts
        ]
        return scores.index(max(scores))

    def framed(self, parts: list[Part], id: bytes, ephemeral: Callable[[int, int], bytes]) -> bytes:
        """A report; `ephemeral` makes the key of a message by its level and place."""
        body = b"OVH3" + self.digest + id
        for level, part in enumerate(parts, start=1):
            for place, message in enumerate(part.messages):
                body += seal(self.key, self.info(level), message, ephemeral(level, place)).whole
            for number in part.clear:
                body += number.to_bytes(part.clear_bytes, "little")
        return body

    def encoded(self, level: int, value: Any, draws: Draws) -> Part:
        mechanism, point = self.plan["mechanisms"][level - 1], self.kind.point(value)
        steps = self._steps(mechanism["steps"], point, draws)
        match mechanism["mechanism"]:
            case "coins":
                return _numbers(_coins(mechanism["noise"], steps, draws), 2 * len(steps) - 1)
            case "shares":
                bits = mechanism["modulus_bits"]
                return _numbers(_shares(mechanism, steps, draws), (len(steps) << bits) - 1)
            case "pairs":
                return self._pairs(level, mechanism, steps, draws)
            case "ballots":
                voted = [place for place, (one, _) in enumerate(steps, start=1) if one]
                return _numbers(voted or [0], len(steps))
        raise Refused(mechanism["mechanism"])

    def _steps(self, steps: int, point: list[Any], draws: Draws) -> list[tuple[int, int]]:
        """Of every coordinate its steps, and how many there are."""
        if self.kind.is_whole:
            return [(one, 1) for one in point]
        if self.kind.are_halves:
            return _halves(steps, point, draws)
        widths = [high - low for low, high in zip(self.kind.lows, self.kind.highs, strict=True)]
        unit, found = max(widths) / steps, []
        for one, low, width in zip(point, self.kind.lows, widths, strict=True):
            most = math.ceil(width / unit * (1 - 1e-9))
            rounded = math.floor((one - low) / unit + draws.rounding() * 2.0**-53)
            found.append((min(max(rounded, 0), most), most))
        return found

    def _pairs(
        self, level: int, mechanism: dict[str, Any], steps: list[tuple[int, int]], draws: Draws
    ) -> Part:
        bits, seed = mechanism["modulus_bits"], draws.seed()
        masks = self.masks(level, seed, bits, len(steps))
        clear = [(one - mask) % (1 << bits) for (one, _), mask in zip(steps, masks, strict=True)]
        return Part([seed], clear, (bits + 7) // 8)

    def masks(self, level: int, seed: bytes, bits: int, count: int) -> list[int]:
        """Numbers of so many bits, which may be larger: the sum is modulo 2^bits."""
        width = (bits + 7) // 8
        stretched = _stretched(self.info(level) + seed, width * count)
        places = range(0, width * count, width)
        return [int.from_bytes(stretched[i : i + width], "little") for i in places]


def _stretched(secret: bytes, length: int) -> bytes:
    """Counters from 0 on, each encrypted on its own."""
    cipher = Cipher(algorithms.AES(hashlib.sha256(secret).digest()[:16]), modes.ECB())
    counters = [block.to_bytes(16, "big") for block in range(-(-length // 16))]
    return cipher.encryptor().update(b"".join(counters))[:length]


def _halves(steps: int, point: list[float], draws: Draws) -> list[tuple[int, int]]:
    """A group's number in one draw: what one of its two coordinates has not, the other has."""
    half, uniform = len(point) // 2, draws.rounding() * 2.0**-53
    found = [(0, steps)] * len(point)
    for j in range(half):
        if point[j] or point[j + half]:
            up = min(max(math.floor(point[j] / (1 / steps) + uniform), 0), steps)
            found[j], found[j + half] = (up, steps), (steps - up, steps)
    return found


def _coins(noise: dict[str, Any], steps: list[tuple[int, int]], draws: Draws) -> list[int]:
    return [
        2 * j + bit
        for j, (ones, most) in enumerate(steps)
        for bit in [1] * ones + [0] * (most - ones) + draws.coins(noise)
    ]


def _shares(mechanism: dict[str, Any], steps: list[tuple[int, int]], draws: Draws) -> list[int]:
    bits, messages = mechanism["modulus_bits"], list[int]()
    for j, (one, _) in enumerate(steps):
        secret = one + draws.noise(mechanism["noise"])
        free = [draws.share(bits) for _ in range(mechanism["shares"] - 1)]
        messages += [(j << bits) + share for share in [(secret - sum(free)) % (1 << bits), *free]]
    return messages


def _numbers(messages: list[int], largest: int) -> Part:
    """Every message in as few bytes as the largest needs."""
    width = (largest.bit_length() + 7) // 8
    return Part([message.to_bytes(width, "little") for message in messages], [], 0)
