"""The sums of a book, added up, to what an earlier plan ended with if there was one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from overhand.model import Estimate
from overhand.plan import Plan
from overhand.service.server.book import Book
from overhand.service.server.pages import Summed, sum_of
from overhand.summation import Gathered, GatheredSums

_AT_ONCE = 1000  # sums that are read together


@dataclass(frozen=True)
class Total:
    """The first `count` sums of a book. It never changes: what is new makes a new one."""

    gathered: GatheredSums
    earlier: Estimate | None
    """What an earlier plan ended with."""
    count: int = 0

    @classmethod
    def begun(cls, plan: Plan, book: Book) -> Total:
        """Without any sum of the book."""
        settled = book.settled
        return cls(GatheredSums(plan), None if settled is None else settled.estimate(plan.values))

    def followed(self, book: Book) -> Total:
        """With all sums that are in the book now."""
        total = self
        while sums := book.sums(total.count, _AT_ONCE):
            total = total.with_sums(sums)
        return total

    def with_sums(self, sums: Sequence[Summed]) -> Total:
        gathered = self.gathered.copy()
        for summed in sums:
            if summed.value is None:
                gathered.lose(summed.level, summed.number)
            else:
                value = sum_of(gathered.plan.values, summed.value)
                gathered.receive(summed.level, summed.number, value, summed.slack)
        return replace(self, gathered=gathered, count=self.count + len(sums))

    def latest(self) -> Gathered | None:
        """The sum of all users so far, those of earlier plans included."""
        latest = self.gathered.latest()
        if self.earlier is None:
            return latest
        if latest is None:
            return Gathered(self.earlier, is_fallback=False)
        return replace(latest, estimate=self.earlier + latest.estimate)
