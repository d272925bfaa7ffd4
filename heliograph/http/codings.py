"""Content codings of bodies (RFC 9110 §8.4): some gateways compress bodies unasked. Pure.

The rule nobody may break: a body never becomes larger than the caller allows, however small it was, and takes linear
time, however many members it has.
"""

from __future__ import annotations

import zlib

#: By name, zlib's `wbits`: for data with a gzip header, and with a zlib header.
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
#: How a gzip and each of its members begin.
_GZIP = b"\x1f\x8b"
#: Bytes given to zlib at once: it copies what follows a member, and a member may have no more than twenty.
_PIECE = 1_024
#: In use elsewhere, but not supported here.
_OTHERS = frozenset({"br", "zstd", "compress", "x-compress", "dcb", "dcz"})


class CannotDecode(ValueError):
    """A body is damaged, ends early, or has a coding that is not supported here."""


class TooLarge(ValueError):
    """A decoded body is larger than allowed."""


def beginning(body: bytes, coding: str, most: int) -> bytes:
    """The first `most` bytes of a possibly incomplete body, decoded; the body itself if it cannot be decoded. `coding`:
    the header's value, "" without one."""
    try:
        decoded, _ = _decoded(body, coding, most)
    except CannotDecode:
        return body
    return decoded


def whole(body: bytes, coding: str, most: int) -> bytes:
    """A complete body, decoded to at most `most` bytes. Raises CannotDecode, TooLarge."""
    decoded, is_complete = _decoded(body, coding, most + 1)
    if len(decoded) > most:
        raise TooLarge
    if not is_complete:
        raise CannotDecode
    return decoded


def _decoded(body: bytes, coding: str, most: int) -> tuple[bytes, bool]:
    """At most `most` bytes of the content, and whether its end was reached. Raises CannotDecode."""
    coding = coding.strip().lower()
    if coding in _OTHERS:
        raise CannotDecode
    window = _WINDOWS.get(coding)
    # Some headers name no coding (`UTF-8`), and some proxies decode a body but keep the header.
    if window is None or not body or (window == 31 and not body.startswith(_GZIP)):
        return body, True
    if window == 15 and (body[0] & 0x0F != 8 or int.from_bytes(body[:2], "big") % 31):
        window = -15  # no zlib header: some senders took `deflate` to mean RFC 1951
    content, at = bytearray(), 0
    try:
        reader = zlib.decompressobj(window)
        while at < len(body) and len(content) < most:
            piece = body[at : at + _PIECE]
            content += reader.decompress(piece, most - len(content))
            at += len(piece) - len(reader.unused_data)
            if not reader.eof:
                continue
            # A gzip may have several members.
            if window != 31 or not body.startswith(_GZIP, at):
                break
            reader = zlib.decompressobj(window)
        return bytes(content), reader.eof
    except zlib.error as error:
        raise CannotDecode from error
