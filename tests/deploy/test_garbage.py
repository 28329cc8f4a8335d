"""What does not open or does not fit is garbage, and is counted."""

from __future__ import annotations

from overhand.deploy.protocol.sealing import Opener, open_release, select_readable
from overhand.deploy.protocol.wire import Batch, LevelFormat, Release
from overhand.randomness import secure_random
from support.small_document import KEY, coin_document, encode_report


def test_garbage_is_counted_by_what_is_wrong_with_it() -> None:
    level = LevelFormat(1, 2, 1, 4, 3)
    opened = [b"\0", b"\7", None, b"", b"\1\0", b"\x08", b"\xff", b"\3"]
    assert select_readable(opened, level).tolist() == [0, 7, 3]
    assert select_readable([], level).tolist() == []


def test_copied_and_foreign_ciphertexts_of_a_release_are_garbage() -> None:
    document = coin_document()
    formats, level = document.formats, document.formats.level(1)
    reports = [encode_report(document, 1, secure_random()) for _ in range(3)]
    first, _, third = (formats.unpack_report(report).parts for report in reports)
    body = first[0] + first[0] + third[1]
    release = formats.unpack(Release, formats.pack(Release(Batch(1, 0), 0, body)))
    shuffled, garbage = open_release(formats, release, Opener(KEY, formats.digest))
    assert (shuffled.sealed.size, garbage) == (level.messages, 2 * level.messages)
