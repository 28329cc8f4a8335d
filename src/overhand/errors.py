"""What can go wrong, and the checks that raise it, in one place and with the numbers.

OverhandError
├── InvalidValue        a value or argument that cannot be used (also a ValueError)
│   └── WrongPlan       bytes that were made for another plan or key
├── ProtocolViolation   a step that Algorithm 1 does not allow
│   ├── KeyGone         a batch whose key was destroyed, so that nothing of it is readable
│   └── NotOffered      a block that was released with other messages than those offered
├── LostBatch           a batch whose sum is unknown: its node is left out of every estimate
├── Infeasible          a guarantee or an error that cannot be reached, or cannot be proved
├── DamagedPlan         a plan file, or a saved state, that differs from what was saved
│   └── DamagedDocument the same for a public document
└── ServiceError        a service or a client that cannot do what it was asked to
    ├── StoreUnavailable    a database that is unavailable now; nothing was left half-done
    ├── UnsafeSecret        a secret's file that is missing, damaged, in the way, or not private
    ├── CannotListen        an address that is in use, or not ours
    ├── Refused             a request that is answered with an error
    ├── Gone                a client that disconnected before its request was complete
    ├── Overloaded          more reports than a service may hold
    │   └── Backlogged      no room until the server answers the offers of the oldest blocks
    ├── NotTaken            a release that the server did not accept
    ├── WorkersLost         ciphertexts that crashed their worker again and again
    ├── Unreachable         a service that did not answer
    │   └── Untrusted       a service that cannot prove its identity
    └── NotCounted          reports that were not counted, or may not have been
        ├── Outdated        a report for a plan or key that is no longer in use
        └── AlreadyReported a device that has made all the reports that a plan allows it

There are two warnings: WeakDelta, a delta at which the guarantee means little, and SecretState, a
saved state that must be kept as safe as users' values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real


class OverhandError(Exception):
    """Everything this package raises on purpose.

    >>> from overhand.model import Privacy
    >>> try:
    ...     Privacy(epsilon=1.0, delta=2.0)
    ... except OverhandError as error:
    ...     print(error)
    delta=2 must be between 0 and 1
    """


class InvalidValue(OverhandError, ValueError):
    """A value or argument that cannot be used.

    >>> from overhand.values import Bits
    >>> Bits().rows([0, 1, 2])
    Traceback (most recent call last):
    overhand.errors.InvalidValue: value 2 of user 3 is not a bit (0 or 1)
    """


class ProtocolViolation(OverhandError):
    """A step that the protocol does not allow.

    >>> import overhand as oh
    >>> server = oh.SumServer(oh.Plan.best(300, shufflers=2, privacy=oh.Privacy(1.0, 1e-6)))
    >>> for _ in range(2):
    ...     server.receive_sum(server.plan.tree.node(level=1, number=0), 2.0)
    Traceback (most recent call last):
    overhand.errors.ProtocolViolation: Node(level=1, start=0, stop=...) was received twice
    """


class LostBatch(OverhandError):
    """A batch whose sum is unknown: its node is left out of every estimate.

    Nothing waits for it: see `SumServer`.
    """


class Infeasible(OverhandError):
    """A guarantee or an error that cannot be reached, or that cannot be proved.

    >>> from overhand.model import Privacy
    >>> from overhand.planning import Plan
    >>> Plan.best(horizon=1000, shufflers=2, privacy=Privacy(1.0, delta=1e-13))
    Traceback (most recent call last):
    overhand.errors.Infeasible: delta=1e-13 is below 1e-12, where composed privacy losses ...
    """


class DamagedPlan(OverhandError):
    """A plan, or the saved state of a sum, that differs from what was saved.

    >>> from overhand.model import Privacy
    >>> from overhand.planning import Plan
    >>> saved = Plan.published(horizon=1000, shufflers=2, privacy=Privacy(1.0, 1e-6)).to_json()
    >>> Plan.from_json(saved.replace('"epsilon": 1.0', '"epsilon": 0.1'))
    Traceback (most recent call last):
    overhand.errors.DamagedPlan: the plan was edited: its digest is ...
    """


class WeakDelta(UserWarning):
    """A delta above 1 / horizon: it would allow publishing the value of a user chosen at random."""


class SecretState(UserWarning):
    """A saved or pickled state contains users' values, unused noise and keys.

    If you keep it as safe as the values themselves, silence this by `warnings.simplefilter`.
    """


class ServiceError(OverhandError):
    """A service or a client that cannot do what it was asked to."""


class StoreUnavailable(ServiceError):
    """A database that is full, locked, read-only or down: try again later, nothing is half-done."""


def whole(name: str, value: object, *, least: int, most: int | None = None) -> int:
    """`value` as an int in [least, most], or `InvalidValue`.

    >>> whole("horizon", 8, least=1)
    8
    >>> whole("horizon", 0, least=1)
    Traceback (most recent call last):
    overhand.errors.InvalidValue: horizon=0 must be a whole number of at least 1
    """
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
    # Most values are ints: those skip the slow check of abstract classes, as plans ask very often.
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, Integral)):
        raise InvalidValue(f"{name}={value!r} must be a whole number {bounds}")
    number = int(value)
    if number < least or (most is not None and number > most):
        raise InvalidValue(f"{name}={number} must be a whole number {bounds}")
    return number


def finite_number(name: str, value: object, *, above: float, below: float = math.inf) -> float:
    """`value` as a finite float strictly between the bounds, or `InvalidValue`."""
    result = _as_float(name, value)
    if not (math.isfinite(result) and above < result < below):
        bounds = f"above {above:g}" if below == math.inf else f"between {above:g} and {below:g}"
        kind = "" if math.isfinite(result) else "a finite number "
        raise InvalidValue(f"{name}={result:g} must be {kind}{bounds}")
    return result


def fraction(name: str, value: object) -> float:
    """`value` as a float in (0, 1], or `InvalidValue`."""
    result = _as_float(name, value)
    if not 0 < result <= 1:
        raise InvalidValue(f"{name}={result:g} must be above 0 and at most 1")
    return result


def one_of(name: str, value: object, known: Sequence[str]) -> None:
    """Refuse a word that is not among those known.

    >>> one_of("engine", "steam", ("counts", "messages"))
    Traceback (most recent call last):
    overhand.errors.InvalidValue: engine='steam' must be one of counts, messages
    """
    if value not in known:
        raise InvalidValue(f"{name}={value!r} must be one of {', '.join(known)}")


def _as_float(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidValue(f"{name}={value!r} must be a number")
    try:
        return float(value)
    except OverflowError:
        raise InvalidValue(f"{name} is too large for a number") from None
