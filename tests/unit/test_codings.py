"""Content codings: compressed content is read within its limit, and errors are reported as such."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import pytest

from heliograph.http import codings

TEXT = b'{"id": "abc", "status": "queued"}'


def raw_deflate(content: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(content) + packer.flush()


@pytest.mark.parametrize(
    ("body", "coding"),
    [
        (TEXT, ""),
        (TEXT, "identity"),
        (TEXT, "UTF-8"),
        (TEXT, "gzip"),  # a proxy decoded it, and left the header
        (b"", "gzip"),
        (gzip.compress(TEXT), "gzip"),
        (gzip.compress(TEXT), " X-GZip"),
        (gzip.compress(TEXT[:9]) + gzip.compress(TEXT[9:]), "gzip"),
        (gzip.compress(TEXT) + b"\0\0", "gzip"),
        (zlib.compress(TEXT), "deflate"),
        (raw_deflate(TEXT), "deflate"),
    ],
)
def test_what_is_compressed_is_read(body: bytes, coding: str) -> None:
    wanted = TEXT if body else b""
    assert codings.whole(body, coding, 1_000) == codings.beginning(body, coding, 1_000) == wanted


@pytest.mark.parametrize("body", [gzip.compress(bytes(1 << 20)), gzip.compress(b"x") * 5_000], ids=["one", "members"])
def test_nothing_grows_past_its_limit(body: bytes) -> None:
    assert len(codings.beginning(body, "gzip", 1_000)) == 1_000
    with pytest.raises(codings.TooLarge):
        codings.whole(body, "gzip", 1_000)


def test_a_gzip_of_many_members_takes_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    body, given, make = gzip.compress(b"") * 10_000, list[int](), zlib.decompressobj

    class Counting:
        def __init__(self, window: int) -> None:
            self._reader = make(window)

        def decompress(self, data: bytes, most: int) -> bytes:
            given.append(len(data))
            return self._reader.decompress(data, most)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._reader, name)

    monkeypatch.setattr(zlib, "decompressobj", Counting)
    assert codings.whole(body, "gzip", 1_000) == b""
    assert sum(given) < 100 * len(body)


def test_a_body_that_ends_early_is_a_beginning_and_no_whole() -> None:
    body = gzip.compress(TEXT)[:-10]
    assert TEXT.startswith(codings.beginning(body, "gzip", 1_000)[:5])
    with pytest.raises(codings.CannotDecode):
        codings.whole(body, "gzip", 1_000)


@pytest.mark.parametrize(("body", "coding"), [(b"\x1f\x8bnot really", "gzip"), (b"\x0b\x02\x80", "br")])
def test_what_cannot_be_read_stays_as_it_is(body: bytes, coding: str) -> None:
    assert codings.beginning(body, coding, 1_000) == body
    with pytest.raises(codings.CannotDecode):
        codings.whole(body, coding, 1_000)
