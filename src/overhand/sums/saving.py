"""What running objects, sums and what learns from them, have in common.

Every call is whole, from however many threads, and there is one way to save, restore and pickle.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from threading import RLock
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from overhand import errors

FORMAT = 2
CUT_SHORT = (
    "takes no more: a call that was changing it was cut short, or this one was made within it, and "
    "to go on could use noise or users twice"
)
"""Why a running object takes no more, after a change that was not finished."""
_FORKED = (
    "belongs to the process that made it: a fork that went on with it would use the same noise "
    "again. Make it after the fork, or restore in one of the two what was saved before"
)

_Object = TypeVar("_Object", bound="Resumable")
_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")


def whole(
    method: Callable[Concatenate[_Object, _Given], _Answer],
) -> Callable[Concatenate[_Object, _Given], _Answer]:
    """A method of a running object that waits for calls from other threads, and they for it.

    >>> from threading import RLock
    >>> class Counter:
    ...     _lock, count = RLock(), 0
    ...     @whole
    ...     def add(self):
    ...         self.count += 1
    ...         return self.count
    >>> Counter().add()
    1
    """

    @functools.wraps(method)
    def alone(this: _Object, /, *args: _Given.args, **options: _Given.kwargs) -> _Answer:
        with this._lock:
            return method(this, *args, **options)

    return alone


class Resumable(ABC):
    """Can be saved and continued with exactly the same future: `to_json`, `from_json`, pickle.

    A state with secure randomness is secret, and saving or pickling it warns (`SecretState`): it
    holds values that no finished batch has mixed yet, noise not yet used and the keys of the
    random streams. Continue with only one of the two: two futures share their noise, and what both
    publish reveals the difference of their users exactly. That is why copying in memory is refused,
    and so are changes in a forked process, which may read what it inherits. Simulations may both.

    Any number of threads may call it. Each call is whole, as if all came one after the other, and
    one that raises has changed nothing. If one that is changing something is cut short, as by an
    interrupt, later changes are refused.

    >>> import pickle
    >>> import overhand as oh
    >>> plan = oh.Plan.best(horizon=1000, shufflers=2, privacy=oh.Privacy(1.0, 1e-6))
    >>> total = oh.ContinualSum(plan, random=oh.seeded_random(7))
    >>> total.update_many([1] * 600)
    >>> again = oh.ContinualSum.from_json(plan, total.to_json())
    >>> again.estimate == total.estimate == pickle.loads(pickle.dumps(total)).estimate
    True
    """

    _lock: RLock
    _closed: str | None
    """Why nothing more is taken. While something changes it is `CUT_SHORT`, in case that it is."""

    def __new__(cls, *_args: Any, **_options: Any) -> Self:
        made = super().__new__(cls)
        made._lock, made._closed = RLock(), None
        _live.add(made)
        return made

    def _check_open(self) -> None:
        """Refuse to change or save what a call left half changed, or another process goes on with.

        A simulation may be forked, as it may be copied.
        """
        if self._closed is _FORKED and not self._is_secret:
            self._closed = None
        if self._closed is not None:
            raise errors.ProtocolViolation(f"this {type(self).__name__} {self._closed}")

    @property
    @abstractmethod
    def _is_secret(self) -> bool:
        """Whether the noise is secret: it is not if it comes from a seed."""

    @abstractmethod
    def secret_state(self) -> dict[str, Any]:
        """Everything needed to continue, ready for JSON."""

    @abstractmethod
    def _arguments(self, text: str) -> tuple[Any, ...]:
        """The other arguments that `from_json` takes to restore a saved state."""

    def to_json(self) -> str:
        """The state, from which `from_json` continues with exactly the same future.

        Keep it as safe as the values themselves, and continue with only one of the two.
        """
        return self._save()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_json, self._arguments(self._save())

    def _save(self) -> str:
        name = type(self).__name__
        if self._is_secret:
            warnings.warn(
                f"the saved {name} holds secrets: values of open batches, unused noise and keys. "
                "Keep it as safe as the values, and continue with only one of the two",
                errors.SecretState,
                stacklevel=3,
            )
        state = {"saved": name, "format": FORMAT, **self.secret_state()}
        return json.dumps({**state, "digest": _digest(state)})

    @classmethod
    @abstractmethod
    def from_json(cls, plan: Any, text: str) -> Self:
        """The saved object, or `DamagedPlan` if this differs from what was saved."""

    @classmethod
    def _restore(cls, text: str, make: Callable[[dict[str, Any]], Self]) -> Self:
        """The object of a saved state, or `DamagedPlan` if there is none."""
        state = _open_state(cls.__name__, text)
        try:
            return make(state)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise errors.DamagedPlan(f"this is not a saved {cls.__name__}: {error}") from error

    def __copy__(self) -> Self:
        if self._is_secret:
            raise errors.ProtocolViolation(
                f"a copy of this {type(self).__name__} would use the same noise again: what both "
                "publish would reveal how their users differ"
            )
        make, arguments = self.__reduce__()
        copied: Self = make(*arguments)
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.__copy__()


_live: weakref.WeakSet[Resumable] = weakref.WeakSet()


def _close_after_fork() -> None:
    """Locks may be held by threads that are not in this process."""
    for inherited in list(_live):
        inherited._lock, inherited._closed = RLock(), inherited._closed or _FORKED


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_close_after_fork)


def _open_state(name: str, text: str) -> dict[str, Any]:
    """The state of a saved thing of this name, or `DamagedPlan`."""
    try:
        state = json.loads(text)
        digest = state.pop("digest", None)
        saved, made = state.get("saved"), state.get("format")
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise errors.DamagedPlan(f"this is not a saved {name}: {error}") from error
    if saved != name or made != FORMAT:
        raise errors.DamagedPlan(
            f"this is not a saved {name} of format {FORMAT}, but {saved!r} of format {made!r}"
        )
    if digest != _digest(state):
        raise errors.DamagedPlan(f"the saved {name} was changed: its digest is different")
    return dict(state)


def _digest(state: dict[str, Any]) -> str:
    canonical = json.dumps(state, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
