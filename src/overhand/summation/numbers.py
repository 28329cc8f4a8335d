"""Numbers of batches that came."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator


class Numbers:
    """A set of whole numbers from 0, as half-open intervals: no larger than its gaps are many.

    >>> numbers = Numbers()
    >>> for number in (0, 1, 5, 4, 2):
    ...     numbers.add(number)
    >>> 2 in numbers, 3 in numbers, numbers.stop, numbers.intervals
    (True, False, 6, 2)
    >>> list(numbers.gaps(below=8))
    [3, 6, 7]
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def copy(self) -> Numbers:
        result = Numbers()
        result._starts, result._stops = self._starts.copy(), self._stops.copy()
        return result

    @property
    def stop(self) -> int:
        """One more than the largest."""
        return self._stops[-1] if self._stops else 0

    @property
    def intervals(self) -> int:
        return len(self._starts)

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._starts, number) - 1
        return place >= 0 and number < self._stops[place]

    def add(self, number: int) -> None:
        """Add a number that is not there, and join the intervals that it joins."""
        place = bisect_right(self._starts, number)
        joins_left = place > 0 and self._stops[place - 1] == number
        joins_right = place < len(self._starts) and self._starts[place] == number + 1
        if joins_left and joins_right:
            self._stops[place - 1] = self._stops.pop(place)
            del self._starts[place]
        elif joins_left:
            self._stops[place - 1] += 1
        elif joins_right:
            self._starts[place] -= 1
        else:
            self._starts.insert(place, number)
            self._stops.insert(place, number + 1)

    def gaps(self, below: int) -> Iterator[int]:
        """The numbers that are not there, smallest first."""
        start = 0
        for first, stop in zip(self._starts, self._stops, strict=True):
            yield from range(start, min(first, below))
            start = stop
        yield from range(start, below)
