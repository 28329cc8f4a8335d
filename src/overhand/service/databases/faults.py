"""What is wrong with a database, in words that quote nothing of what is in it."""

from __future__ import annotations

from overhand.errors import ProtocolViolation

_SILENT = "does not answer"
_OTHER = "cannot be used"
_SQLITE = {
    "SQLITE_FULL": "is full",
    "SQLITE_IOERR": "cannot be read or written",
    "SQLITE_READONLY": "is read-only",
    "SQLITE_BUSY": "is locked",
    "SQLITE_LOCKED": "is locked",
    "SQLITE_CORRUPT": "is damaged",
    "SQLITE_NOTADB": "is damaged",
}
_POSTGRES = {
    "08": _SILENT,  # no connection
    "25006": "is read-only",
    "53100": "is full",
    "53": "has no room for more connections",
    "55P03": "is locked",
    "57P": _SILENT,  # it stops, crashed, or starts
    "XX001": "is damaged",
    "XX002": "is damaged",
}


def fault_of(error: Exception) -> str:
    """Why a store or a book could not be used, as what one says of it.

    A store whose keys have gone on without it is a copy from before some batches were frozen: a
    backup, or a replica that had not seen all that was committed.

    >>> fault_of(ProtocolViolation("the key of batch 3 is gone"))
    'is older than its keys'
    >>> fault_of(ValueError("?"))
    'cannot be used'
    """
    if isinstance(error, ProtocolViolation):
        return "is older than its keys"
    cause = error.__cause__
    if isinstance(name := getattr(cause, "sqlite_errorname", None), str):
        return _longest_match(_SQLITE, name)
    if hasattr(cause, "sqlstate"):  # None of a connection that was lost
        return _longest_match(_POSTGRES, getattr(cause, "sqlstate", None) or "08")
    return _OTHER


def _longest_match(words: dict[str, str], code: str) -> str:
    """What is said of a code, or of the class that it is in."""
    known = sorted((start for start in words if code.startswith(start)), key=len)
    return words[known[-1]] if known else _OTHER
