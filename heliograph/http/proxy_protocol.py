"""The PROXY protocol: what a proxy says about its client at the start of a connection (haproxy.org, proxy-protocol.txt,
versions 1 and 2). Pure: no I/O.

The rule nobody may break: its use is configured, never guessed (§2); a missing header is refused.
"""

from __future__ import annotations

import ipaddress
import re

from heliograph.base.network.addresses import Address

#: The beginning of a version 2 header (§2.2).
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
#: Signature, version and command, family, length of what follows.
_FIXED = len(SIGNATURE) + 4
#: Addresses and what proxies append (TLVs); a public cloud's header has 100 bytes.
LONGEST = _FIXED + 2_048
_LOCAL, _PROXY = 0x20, 0x21
#: Bytes of an IPv4 and IPv6 address, whatever the transport.
_FAMILIES = {0x1: 4, 0x2: 16}

#: Version 1 is a line of at most this many bytes (§2.1).
LONGEST_LINE = 107
_WORD = b"PROXY "
_LINE = re.compile(
    rb"PROXY (?:UNKNOWN(?: [ -~]*+)?|TCP([46]) ([0-9A-Fa-f:.]++) [0-9A-Fa-f:.]++ ([0-9]{1,5}) [0-9]{1,5})\r\n"
)

#: Length of the header; the client's address and port, None if the proxy speaks for itself or names none.
Found = tuple[int, tuple[str, int] | None]


class NotProxied(Exception):
    """The connection does not begin with a PROXY protocol header."""


def read_prefix(data: bytes | bytearray) -> Found | None:
    """The header at the start of `data`; None while it is incomplete. Raises NotProxied."""
    if SIGNATURE.startswith(data[: len(SIGNATURE)]):
        return _version_2(data)
    if _WORD.startswith(data[: len(_WORD)]):
        return _version_1(data)
    raise NotProxied


def unmapped(address: Address) -> Address:
    """An IPv4-mapped IPv6 address as IPv4; others unchanged."""
    return getattr(address, "ipv4_mapped", None) or address


def _version_1(data: bytes | bytearray) -> Found | None:
    end = data.find(b"\n", 0, LONGEST_LINE) + 1
    if not end:
        if len(data) >= LONGEST_LINE:
            raise NotProxied
        return None
    line = _LINE.fullmatch(data, 0, end)
    if line is None:
        raise NotProxied
    version, source, port = line.groups()
    if version is None:
        return end, None
    try:
        address = ipaddress.ip_address(source.decode())
    except ValueError:
        raise NotProxied from None
    if address.version != int(version) or int(port) > 65_535:
        raise NotProxied
    return end, (str(unmapped(address)), int(port))


def _version_2(data: bytes | bytearray) -> Found | None:
    if len(data) < _FIXED:
        return None
    command, family = data[12], data[13]
    length = _FIXED + int.from_bytes(data[14:16])
    if command not in (_LOCAL, _PROXY) or length > LONGEST:
        raise NotProxied
    if len(data) < length:
        return None
    size = _FAMILIES.get(family >> 4)
    if command == _LOCAL or size is None:
        return length, None
    if length < _FIXED + 2 * size + 4:
        raise NotProxied
    address = ipaddress.ip_address(bytes(data[_FIXED : _FIXED + size]))
    port = int.from_bytes(data[_FIXED + 2 * size : _FIXED + 2 * size + 2])
    return length, (str(unmapped(address)), port)
