"""Static files: the content served is what it was at startup."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from heliograph.http.static import StaticPage, digest, mapped

BEFORE, AFTER = b"as it was " * 5_000, b"as it is now"


async def test_a_file_is_sent_as_it_was_when_the_process_began(tmp_path: Path) -> None:
    file, newer = tmp_path / "viewer.js", tmp_path / "newer"
    file.write_bytes(BEFORE)
    page, same = (
        StaticPage(mapped(file), "text/javascript", "no-cache"),
        StaticPage(BEFORE, "text/javascript", "no-cache"),
    )
    newer.write_bytes(AFTER)
    newer.replace(file)
    assert page.etag == same.etag == f'"{digest(BEFORE)}"'.encode()
    for _ in range(2):
        plain, packed = await page.answer({}), await page.answer({b"accept-encoding": b"gzip"})
        assert plain.body == BEFORE
        assert gzip.decompress(packed.body) == BEFORE
        assert plain.headers == (await same.answer({})).headers


async def test_what_could_not_be_compressed_for_a_moment_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stylesheet was missing until the process was restarted."""
    page = StaticPage(BEFORE, "text/css", "no-cache")

    def compress(*_: object, **__: object) -> bytes:
        raise MemoryError

    with monkeypatch.context() as scarce:
        scarce.setattr(gzip, "compress", compress)
        with pytest.raises(MemoryError):
            await page.answer({b"accept-encoding": b"gzip"})
    packed = await page.answer({b"accept-encoding": b"gzip"})
    assert gzip.decompress(packed.body) == BEFORE
