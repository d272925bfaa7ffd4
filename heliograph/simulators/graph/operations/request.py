"""A request, as seen by the simulator's components."""

from __future__ import annotations

import urllib.parse

import msgspec

from heliograph.http.heads import RequestHead


class Request(msgspec.Struct, gc=False):
    """Method, decoded path, query, headers with lower-case names (the last one if a name repeats), body."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


def request_of(head: RequestHead, body: bytes) -> Request:
    """The request with this head and body."""
    query = dict(urllib.parse.parse_qsl(head.query.decode("latin-1"), keep_blank_values=True)) if head.query else {}
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
    return Request(head.method, head.path, query, headers, body)
