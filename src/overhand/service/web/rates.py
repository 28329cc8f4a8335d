"""How often one address, or one token, may ask: kept in memory, and forgotten within seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from ipaddress import IPv6Address

BURST = 10.0
"""Seconds: the requests allowed in this time may come at once, after a silence."""
_MOST_KEYS = 1 << 16


class Rate:
    """This many times per second for each key, in bursts of up to `BURST` seconds' worth; 0 is any.

    For each key only the time is kept until which its allowance is used up. `forget` lets go of
    those for whom it has passed; if too many keys are known, those silent for longest go earlier.

    >>> rate = Rate(0.1)
    >>> rate.allows("somebody"), rate.allows("somebody"), rate.allows("another")
    (True, False, True)
    """

    def __init__(self, per_second: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._each = 1 / per_second if per_second else 0.0
        self._clock = clock
        self._used: dict[Hashable, float] = {}

    def allows(self, key: Hashable) -> bool:
        """Whether this key may ask now, which then counts."""
        if not self._each:
            return True
        now, used = self._clock(), self._used
        until = max(used.pop(key, now), now) + self._each
        is_allowed = until - now <= max(BURST, self._each)
        used[key] = until if is_allowed else until - self._each
        if len(used) > _MOST_KEYS:
            del used[next(iter(used))]
        return is_allowed

    def forget(self) -> None:
        """Let go of all keys that may ask as if they had never asked."""
        now = self._clock()
        self._used = {key: until for key, until in self._used.items() if until > now}


def address_key(host: str | None) -> Hashable | None:
    """Who an address belongs to: an IPv6 host has a whole /64. None if it is this machine.

    >>> address_key("2001:db8::1") == address_key("2001:db8::2"), address_key("127.0.0.1")
    (True, None)
    """
    if host is None or host.startswith("127."):
        return None
    if ":" not in host:
        return host
    address = IPv6Address(host)
    if address.ipv4_mapped is not None:
        return address_key(str(address.ipv4_mapped))
    return None if address.is_loopback else address.packed[:8]
