"""The sums of a book, added up, to what an earlier plan ended with if there was one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from overhand.model import Estimate
from overhand.plan import Plan
from overhand.service.server.book import Book
from overhand.service.server.pages import Summed, sum_of
from overhand.summation import SumServer

_AT_ONCE = 1000  # sums that are read together


@dataclass(frozen=True)
class Total:
    """The first `count` sums of a book. It never changes: what is new makes a new one."""

    server: SumServer
    earlier: Estimate | None
    """What an earlier plan ended with."""
    count: int = 0

    @classmethod
    def begun(cls, plan: Plan, book: Book) -> Total:
        """Without any sum of the book."""
        settled = book.settled
        return cls(SumServer(plan), None if settled is None else settled.estimate(plan.values))

    def followed(self, book: Book) -> Total:
        """With all sums that are in the book now."""
        total = self
        while sums := book.sums(total.count, _AT_ONCE):
            total = total.with_sums(sums)
        return total

    def with_sums(self, sums: Sequence[Summed]) -> Total:
        server = self.server.copy()
        for summed in sums:
            node = server.plan.tree.node(summed.level, summed.number)
            if summed.value is None:
                server.lose(node)
            else:
                value = sum_of(server.plan.values, summed.value)
                server.receive_sum(node, value, summed.slack)
        return replace(self, server=server, count=self.count + len(sums))

    def latest(self) -> Estimate | None:
        """The sum of all users so far, those of earlier plans included; None if there are none."""
        latest = self.server.estimate() if self.server.covered else None
        if self.earlier is None or latest is None:
            return latest or self.earlier
        return self.earlier + latest
