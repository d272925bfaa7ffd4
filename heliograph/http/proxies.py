"""The trusted proxies of the settings, which report where a request comes from.

A proxy reports it in one way, and only that one is trusted: a proxy that appends to X-Forwarded-For passes on a
client's own `Forwarded` unchanged. The rule nobody may break: claims from an address outside the trusted networks are
ignored. In a list of addresses, the rightmost untrusted one counts; everything to its left was written by the client.
Pure: no I/O.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterator

from heliograph.base.network.addresses import Address, parse_networks
from heliograph.http.heads import Headers
from heliograph.http.proxy_protocol import unmapped

#: Lists up to this long are cached; a client can make its own arbitrarily long.
_SHORT = 128

#: `for=` of one element of Forwarded (RFC 7239 §4): a token or a quoted string.
_FOR = re.compile(r'(?:^|;)[ \t]*for[ \t]*=[ \t]*(?:"([^"\\]*)"|([^;" \t]+))[ \t]*(?=;|$)', re.IGNORECASE)
#: An address with its port: `192.0.2.1:443`, `[2001:db8::1]:443`, `[2001:db8::1]`.
_WITH_PORT = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+))(?::[A-Za-z0-9._-]+)?")


class TrustedProxies:
    """The trusted proxies, and how they report addresses."""

    def __init__(self, networks: str = "", says: str = "") -> None:
        """`networks`, `says`: `trusted_proxies` and `proxy_says` in the settings. Raises ValueError on a malformed
        network."""
        self._networks = parse_networks(networks)
        self._header = {"x-forwarded-for": b"x-forwarded-for", "forwarded": b"forwarded"}.get(says, b"")
        #: Whether connections of trusted proxies begin with a PROXY protocol header.
        self.is_prefixed = says == "proxy-protocol"
        #: (address) → whether it is a trusted proxy's.
        self.covers = functools.lru_cache(maxsize=4_096)(self._covers)
        self._short = functools.lru_cache(maxsize=4_096)(self._client)

    def _covers(self, address: str) -> bool:
        parsed = _parsed(address)
        return parsed is not None and any(parsed in network for network in self._networks)

    def believes_headers_of(self, address: str) -> bool:
        """Whether the headers of requests from this address are trusted to name the client."""
        return bool(self._header) and self.covers(address)

    def client(self, address: str, headers: Headers) -> str:
        """The client that the trusted proxy at `address` names; the proxy itself if it sends no header, "" if its
        header is not valid."""
        values = [value for name, value in headers if name == self._header]
        if not values:
            return address
        value = b",".join(values)
        return (self._short if len(value) <= _SHORT else self._client)(address, value)

    def _client(self, address: str, value: bytes) -> str:
        for element in _from_the_right(value.decode("latin-1")):
            parsed = _parsed(_for(element) if self._header == b"forwarded" else element)
            if parsed is None:
                return ""
            address = str(parsed)
            if not self.covers(address):
                break
        return address


def _from_the_right(text: str) -> Iterator[str]:
    """The parts between commas outside quoted strings, last one first. Quotation marks are paired from the right:
    one that the client left open must not swallow what the proxy wrote after it."""
    element = ""
    for at, piece in enumerate(reversed(text.split('"'))):
        if at % 2:
            element = f'"{piece}"{element}'
            continue
        *parts, last = piece.split(",")
        element = last + element
        for part in reversed(parts):
            yield element
            element = part
    yield element


def _for(element: str) -> str:
    match = _FOR.search(element)
    return "" if match is None else match[1] or match[2] or ""


def _parsed(text: str) -> Address | None:
    text = text.strip()
    match = _WITH_PORT.fullmatch(text)
    try:
        return unmapped(ipaddress.ip_address(match[1] or match[2] if match else text))
    except ValueError:
        return None
