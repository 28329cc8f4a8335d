"""Whether a service can work: faults of its database are logged once, counted and shown."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import threading
import time
from collections.abc import Callable
from http import HTTPStatus

from overhand.service.databases import fault_of
from overhand.service.web.bodies import Refused
from overhand.service.web.logs import Trouble

_FRESH = 1.0
"""Seconds for which nobody asks a database again."""
_PATIENCE = 3.0
"""Seconds after which a database that has not answered does not."""
_HOLD = 5.0
"""Seconds for which a fault of real work stands, whatever a probe says: it may be for a part of the
work only, as where the last pages of a disk are enough for the probe."""


class Readiness:
    """Whether the database of a service, called `noun`, does what is asked of it.

    That shows in what comes of the service's work, and if there was none for a second, in `probe`:
    work that changes nothing, and raises what keeps it from being done. What is wrong is logged
    when it begins, when it changes and when it ends, however often it shows meanwhile.
    """

    def __init__(self, noun: str, probe: Callable[[], None], trouble: Trouble) -> None:
        self._noun = noun
        self._probe = probe
        self._trouble = trouble
        self._lock = threading.Lock()
        self._known = self._failed = -math.inf
        self._answer: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._answer.set_result(None)
        self.count: Callable[[], None] = lambda: None
        """Called for every fault."""

    @property
    def reason(self) -> str | None:
        """What is known to be wrong, in words for anybody; None if nothing is."""
        return self._trouble.reason

    def worked(self) -> None:
        """The service changed its database as it should: whatever was wrong is over."""
        with self._lock:
            self._known = time.monotonic()
            self._trouble.end()

    def failed(self, error: Exception) -> None:
        """The database kept the service from its work."""
        with self._lock:
            self._failed = time.monotonic()
        self._begin(fault_of(error), type(error).__name__)

    async def check(self) -> None:
        """Raise `Refused` if the service is not ready."""
        answer = asyncio.wrap_future(self._asked())
        done, _ = await asyncio.wait([answer], timeout=_PATIENCE)
        self._note(is_silent=not done)
        if self.reason is not None:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, self.reason, retry=True)

    def look(self) -> bool:
        """Find out how things are; whether the database says anything, be it that it cannot."""
        done, _ = concurrent.futures.wait([self._asked()], timeout=_PATIENCE)
        self._note(is_silent=not done)
        return bool(done)

    def _note(self, *, is_silent: bool) -> None:
        if is_silent:
            self._begin("does not answer", TimeoutError.__name__)

    def _asked(self) -> concurrent.futures.Future[None]:
        """Done when it is known how things are, or were less than a second ago."""
        with self._lock:
            if self._answer.done() and time.monotonic() - self._known >= _FRESH:
                self._answer = concurrent.futures.Future()
                # Nobody waits for it in the end: a process stops although its database hangs.
                threading.Thread(target=self._ask, args=[self._answer], daemon=True).start()
            return self._answer

    def _ask(self, answer: concurrent.futures.Future[None]) -> None:
        try:
            self._probe()
        except Exception as error:
            self._begin(fault_of(error), type(error).__name__)
        else:
            self._end()
        finally:
            answer.set_result(None)

    def _begin(self, fault: str, kind: str) -> None:
        with self._lock:
            self._known = time.monotonic()
            self._trouble.begin(f"the {self._noun} {fault}", kind=kind)
        self.count()

    def _end(self) -> None:
        with self._lock:
            self._known = time.monotonic()
            if self._known - self._failed >= _HOLD:
                self._trouble.end()
