"""Parses the head of a request: its line, its fields, and how its body is framed. Pure. RFC 9112.

The rule nobody may break: what two parsers could interpret differently is refused, because that is how requests are
smuggled.
"""

from __future__ import annotations

import re
import urllib.parse
from typing import Any

import msgspec

Headers = list[tuple[bytes, bytes]]

TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
VALUE = rb"[\t -~\x80-\xff]*+"
_METHOD = TOKEN + rb"{1,20}+"
_REQUEST_LINE = re.compile(rb"(" + _METHOD + rb") ([!-~]++) HTTP/(1\.[01])\r\n")
REQUEST_LINE_BEGUN = re.compile(_METHOD + rb"(?: |\Z)")
_ORIGIN = re.compile(rb"https?://(?:[a-z0-9._-]++|\[[0-9a-f:.]++\])(?::[0-9]*+)?(?=[/?]|\Z)", re.IGNORECASE)
_NAME = re.compile(TOKEN + rb"++")
#: Changes the characters that a value must not contain (RFC 9110 §5.5) to spaces.
_WITHOUT_CONTROLS = bytes(ord(" ") if (code < 32 and code != ord("\t")) or code == 127 else code for code in range(256))

#: These headers determine how the rest of the connection is read.
_DECISIVE = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection", b"expect"})
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
#: The same few lines of these headers recur, and contain no secret, so their parsed form is cached, as are names, and
#: request lines without a query.
_REPEATED = _DECISIVE | {b"accept", b"accept-encoding", b"user-agent", b"content-type"}
#: How many of each are cached.
_REMEMBERED = 1_024
#: Longer ones are not cached, bytes.
_SHORT = 128


class HttpError(Exception):
    """This request cannot be served.

    `status`: of the answer. `reason`: for people; it quotes nothing from the request.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class RequestHead(msgspec.Struct, gc=False):
    """The head of a request. Names of headers are in lower case."""

    method: str
    #: As received, without the query.
    raw_path: bytes
    #: Decoded.
    path: str
    query: bytes
    #: "1.0" or "1.1".
    version: str
    headers: Headers
    #: Bytes of the body; None: it is chunked.
    length: int | None
    keep_alive: bool
    #: The client waits for 100 before it sends the body.
    expects_continue: bool


def has_token(value: bytes, token: bytes) -> bool:
    """Whether a comma-separated list contains this token, given in lower case."""
    return value == token or token in [one.strip(b" \t") for one in value.lower().split(b",")]


def framing(is_1_0: bool, headers: Headers) -> tuple[int | None, bool, bool]:
    """(bytes of the body, None if chunked; whether the connection stays open; whether 100 is expected), by RFC 9112
    §6."""
    hosts = 0
    length: int | None = None
    is_chunked = expects_continue = False
    keep_alive = not is_1_0
    for name, value in headers:
        if name not in _DECISIVE:
            continue
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            if length is not None:
                raise HttpError(400, "there are several Content-Length headers")
            if not value.isdigit() or len(value) > 18:
                raise HttpError(400, "Content-Length is not a number")
            length = int(value)
        elif name == b"transfer-encoding":
            if is_chunked or value.lower() != b"chunked":
                raise HttpError(400, "Transfer-Encoding may be `chunked` only")
            is_chunked = True
        elif name == b"connection":
            keep_alive = keep_alive and not has_token(value, b"close")
        else:  # 1.0 has no interim answers (RFC 9110 §10.1.1)
            expects_continue = not is_1_0 and value.lower() == b"100-continue"
    if is_chunked and length is not None:
        raise HttpError(400, "there are both Transfer-Encoding and Content-Length")
    if is_chunked and is_1_0:
        raise HttpError(400, "HTTP/1.0 has no Transfer-Encoding")
    if hosts > 1 or (hosts == 0 and not is_1_0):
        raise HttpError(400, "there must be one Host header")
    return None if is_chunked else length or 0, keep_alive, expects_continue


_fields: dict[bytes, tuple[bytes, bytes]] = {}
_names: dict[bytes, bytes] = {}


def fields(block: bytes) -> Headers:
    """The fields of a head or trailer: lines separated by line ends. Raises HttpError."""
    return [_fields.get(line) or _field(line) for line in block.split(b"\r\n")]


def _field(line: bytes) -> tuple[bytes, bytes]:
    """Name in lower case, and value."""
    name, colon, value = line.partition(b":")
    lower = _names.get(name)
    if lower is None:
        if _NAME.fullmatch(name) is None:
            raise HttpError(400, "a header is malformed")
        lower = name.lower()
        if len(name) <= _SHORT:
            _remember(_names, name, lower)
    if not colon or value.translate(_WITHOUT_CONTROLS) != value:
        raise HttpError(400, "a header is malformed")
    # Readers that do not treat a tab as space there would see a different body from ours.
    field = lower, value.strip(b" " if lower in _FRAMING else b" \t")
    if lower in _REPEATED and len(line) <= _SHORT:
        _remember(_fields, line, field)
    return field


def _remember(known: dict[bytes, Any], key: bytes, value: Any) -> None:
    if len(known) >= _REMEMBERED:
        known.clear()
    known[key] = value


_RequestLine = tuple[str, bytes, str, bytes, str]
_request_lines: dict[bytes, _RequestLine] = {}


def request_line(line: bytes) -> _RequestLine:
    """Method, raw path, decoded path, query and version (RFC 9112 §3)."""
    known = _request_lines.get(line)
    if known is not None:
        return known
    found = _REQUEST_LINE.fullmatch(line)
    if found is None:
        raise HttpError(400, "the request line is malformed")
    method, target, version = found.groups()
    origin = None if target.startswith(b"/") or target == b"*" else _ORIGIN.match(target)
    if origin is not None:
        target = target[origin.end() :]
        if not target.startswith(b"/"):
            target = b"/" + target
    if method == b"CONNECT" or b"#" in target or (not target.startswith(b"/") and target != b"*"):
        raise HttpError(400, "the address is malformed")  # or a tunnel is requested, which we do not offer
    raw_path, _, query = target.partition(b"?")
    path = raw_path.decode("ascii")
    parts = method.decode(), raw_path, urllib.parse.unquote(path) if "%" in path else path, query, version.decode()
    if not query and len(line) <= _SHORT:
        _remember(_request_lines, line, parts)
    return parts
