"""Requests as clients send them, valid and broken, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from heliograph.http.reader import CHUNK_LINE_BYTES

NAMES = st.sampled_from([b"Accept", b"x-a", b"X-Long-Name_1", b"!#$%&'*+-.^_`|~9"])
VALUES = st.sampled_from([b"", b"a", b"a b\tc", b"\xe9;q=0", b'"quoted, x"', b"close", b"chunked"])
SPACE = st.sampled_from([b"", b" ", b"\t ", b"  "])
FIELD = st.tuples(NAMES, SPACE, VALUES, SPACE).map(lambda each: b"%b:%b%b%b\r\n" % each)
FIELDS = st.lists(FIELD, max_size=3).map(b"".join)
CHUNK = st.tuples(
    st.binary(min_size=1, max_size=20),
    st.sampled_from([b"", b";a", b";a=b", b';a="b c";d']),
    st.sampled_from([b"%x", b"%X", b"00%x"]),
)


def chunk(given: tuple[bytes, bytes, bytes]) -> bytes:
    data, extension, form = given
    return form % len(data) + extension + b"\r\n" + data + b"\r\n"


CHUNKED = st.tuples(st.lists(CHUNK.map(chunk), max_size=4).map(b"".join), FIELDS).map(
    lambda each: b"Transfer-Encoding: chunked\r\n\r\n%b0\r\n%b\r\n" % each
)
SIZED = st.binary(max_size=30).map(lambda body: b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
BODY = st.one_of(st.just(b"\r\n"), SIZED, CHUNKED)
CONNECTION = st.sampled_from(
    [b"", b"Connection: close\r\n", b"connection: Keep-Alive\r\n", b"Connection: x, CLOSE\r\n"]
)
REQUEST = st.tuples(
    st.sampled_from([b"", b"\r\n"]),
    st.sampled_from([b"GET", b"POST", b"DELETE", b"OPTIONS"]),
    st.sampled_from([b"/", b"/v1/a%20b?c=d&e", b"http://a.example/x?y", b"/a//b;c"]),
    FIELDS,
    CONNECTION,
    BODY,
).map(lambda each: b"%b%b %b HTTP/1.1\r\nHost: a\r\n%b%b%b" % each)
OLD_REQUEST = st.tuples(FIELDS, st.one_of(st.just(b"\r\n"), SIZED)).map(lambda each: b"POST / HTTP/1.0\r\n%b%b" % each)
REQUESTS = st.lists(st.one_of(REQUEST, REQUEST, OLD_REQUEST), min_size=1, max_size=3).map(b"".join)
PIECES = (
    *(b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b";", b",", b"0", b"5", b"a", b"\0", b"\x7f", b"\xff", b"\r\n\r\n"),
    *(b"Host: b\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 3\r\n", b"Content-Length: 3, 3\r\n"),
    *(b"Transfer-Encoding: gzip, chunked\r\n", b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\n", b" folded\r\n"),
    *(b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"CONNECT", b"x" * 30, b"x" * 200, b";" * (CHUNK_LINE_BYTES + 1)),
)
MUTATION = st.tuples(st.floats(0, 1), st.integers(0, 4), st.sampled_from(PIECES))
CUTS = st.lists(st.integers(1, 600), max_size=12)


def mutated(data: bytes, mutations: list[tuple[float, int, bytes]]) -> bytes:
    """A change that replaces some bytes at a position with others."""
    for where, away, piece in mutations:
        at = int(where * len(data))
        data = data[:at] + piece + data[at + away :]
    return data


def broken(whole: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.builds(mutated, whole, st.lists(MUTATION, min_size=1, max_size=3))
