"""One way to save, restore and pickle what goes on: sums, and what learns from them."""

from __future__ import annotations

import hashlib
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

from overhand import errors

FORMAT = 2


class Resumable(ABC):
    """What can be saved and goes on with the very same future: `to_json`, `from_json` and pickle.

    A state with secure randomness is secret, and saving or pickling it warns (`SecretState`): it
    holds values that no finished batch has mixed yet, noise not yet used and the keys of the
    random streams. Go on with one of the two: two futures share their noise, and what both publish
    tells the difference of their users exactly. That is why no copy is made in memory, except of
    a simulation.

    >>> import pickle
    >>> import overhand as oh
    >>> plan = oh.Plan.best(horizon=1000, shufflers=2, privacy=oh.Privacy(1.0, 1e-6))
    >>> total = oh.ContinualSum(plan, random=oh.seeded_random(7))
    >>> total.update_many([1] * 600)
    >>> again = oh.ContinualSum.from_json(plan, total.to_json())
    >>> again.estimate == total.estimate == pickle.loads(pickle.dumps(total)).estimate
    True
    """

    @property
    @abstractmethod
    def _is_secret(self) -> bool:
        """Whether noise is to be kept from others: it is not from a seed."""

    @abstractmethod
    def secret_state(self) -> dict[str, Any]:
        """All that is needed to go on, ready for JSON."""

    @abstractmethod
    def _arguments(self, text: str) -> tuple[Any, ...]:
        """What `from_json` takes to make the same of a saved state."""

    def to_json(self) -> str:
        """The state, from which `from_json` goes on with the very same future.

        Keep it as safe as the values themselves, and go on with one of the two.
        """
        return self._saved()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_json, self._arguments(self._saved())

    def _saved(self) -> str:
        name = type(self).__name__
        if self._is_secret:
            warnings.warn(
                f"the saved {name} holds secrets: values of open batches, unused noise and keys. "
                "Keep it as safe as the values, and go on with one of the two only",
                errors.SecretState,
                stacklevel=3,
            )
        state = {"saved": name, "format": FORMAT, **self.secret_state()}
        return json.dumps({**state, "digest": _digest(state)})

    @classmethod
    @abstractmethod
    def from_json(cls, plan: Any, text: str) -> Self:
        """What was saved, or `DamagedPlan` if this is not what was saved."""

    @classmethod
    def _restored(cls, text: str, made_of: Callable[[dict[str, Any]], Self]) -> Self:
        """What is made of a saved state, or `DamagedPlan` if nothing can be."""
        state = _opened(cls.__name__, text)
        try:
            return made_of(state)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise errors.DamagedPlan(f"this is not a saved {cls.__name__}: {error}") from error

    def __copy__(self) -> Self:
        if self._is_secret:
            raise errors.ProtocolViolation(
                f"a copy of this {type(self).__name__} would use the same noise again: what both "
                "publish would tell their users apart"
            )
        make, arguments = self.__reduce__()
        copied: Self = make(*arguments)
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.__copy__()


def _opened(name: str, text: str) -> dict[str, Any]:
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
        raise errors.DamagedPlan(f"the saved {name} was changed: its digest is another")
    return dict(state)


def _digest(state: dict[str, Any]) -> str:
    canonical = json.dumps(state, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
