"""What all roles agree on: the document, the wire format, and how messages are sealed."""

from overhand.service.protocol.document import DamagedDocument, Document
from overhand.service.protocol.keys import (
    KeyPair,
    UnsafeSecret,
    create_token,
    hashed,
    load_hashes,
    load_token,
    matches,
    new_token,
    read_secret,
    write_secret,
)
from overhand.service.protocol.reports import encode_report, encode_reports, open_release
from overhand.service.protocol.sealing import (
    SUITE,
    Opened,
    Opener,
    Opens,
    Sealer,
    info,
)
from overhand.service.protocol.wire import (
    ID_BYTES,
    MOST_REPORT_BYTES,
    REPORT_MAGIC,
    Batch,
    Formats,
    LevelFormat,
    Release,
    WrongPlan,
)

__all__ = [
    "ID_BYTES",
    "MOST_REPORT_BYTES",
    "REPORT_MAGIC",
    "SUITE",
    "Batch",
    "DamagedDocument",
    "Document",
    "Formats",
    "KeyPair",
    "LevelFormat",
    "Opened",
    "Opener",
    "Opens",
    "Release",
    "Sealer",
    "UnsafeSecret",
    "WrongPlan",
    "create_token",
    "encode_report",
    "encode_reports",
    "hashed",
    "info",
    "load_hashes",
    "load_token",
    "matches",
    "new_token",
    "open_release",
    "read_secret",
    "write_secret",
]
