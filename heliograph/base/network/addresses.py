"""The addresses and URLs that outbound requests may use.

The rule nobody may break: this is an allow-list. Anything not known to be a public unicast address is refused,
including some that Python's `is_global` accepts (it is True for `::127.0.0.1`, `64:ff9b::a9fe:a9fe`, `2002:7f00:1::`,
`fec0::1`, `ff02::1`). A URL is accepted only in a spelling that every parser reads alike.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

LONGEST_URL = 2048

#: In addition to `is_global`, whose answer for some of these differs between Python releases: protocol assignments
#: (RFC 6890), the 6to4 relay anycast (RFC 7526), multicast and everything reserved above it.
_REFUSED_IPV4 = [IPv4Network(text) for text in ("192.0.0.0/24", "192.88.99.0/24", "224.0.0.0/3")]

#: All unicast space that IANA assigns, except protocol assignments (Teredo, ORCHID), documentation, 6to4,
#: documentation.
_GLOBAL_IPV6 = IPv6Network("2000::/3")
_REFUSED_IPV6 = [IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")]

#: IPv6 that represents an IPv4 address in its last 32 bits: mapped (RFC 4291 §2.5.5.2) and NAT64 (RFC 6052 §2.1).
_WRAPPERS = [IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96")]

_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://"
    r"(?P<userinfo>(?:[^/?#@]*+@)++)?"
    r"(?:\[(?P<ipv6>[^]/?#]*+)\]|(?P<host>[^/?#:\[\]]*+))"
    r"(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<rest>[/?#].*)?"
)
_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_IPV4 = re.compile(r"(?:(?:0|[1-9][0-9]{0,2})\.){3}(?:0|[1-9][0-9]{0,2})")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")


class Target(NamedTuple):
    """The target of a valid URL. `address` is None if the host is a name."""

    scheme: str
    host: str
    port: int
    address: Address | None

    @property
    def origin(self) -> str:
        """Scheme, host and port: requests with the same origin may share a connection."""
        return f"{self.scheme}://{self.host}:{self.port}"


def parse_networks(text: str) -> tuple[Network, ...]:
    """Comma-separated CIDRs, as in `webhook_allow_networks`. Raises ValueError on a malformed one."""
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


@functools.lru_cache(maxsize=16_384)
def sharer(address: str) -> str:
    """The key under which an address counts toward per-address limits: itself, or the /64 of an IPv6 address, since a
    network assigns each customer at least that; "" if it is not an address."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return ""
    if isinstance(parsed, IPv4Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or IPv6Network((parsed.packed, 64), strict=False))


def is_allowed(address: Address, allowed_networks: Sequence[Network] = ()) -> bool:
    """Whether a connection to this address may be opened: it is public, or in one of `allowed_networks`."""
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return False
        if any(address in wrapper for wrapper in _WRAPPERS):
            return is_allowed(IPv4Address(address.packed[-4:]), allowed_networks)
    if any(address in network for network in allowed_networks):
        return True
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in network for network in _REFUSED_IPV4)
    return address in _GLOBAL_IPV6 and not any(address in network for network in _REFUSED_IPV6)


def parse_url(
    url: str, *, allow_http: bool, allowed_networks: Sequence[Network] = (), longest: int = LONGEST_URL
) -> Target | str:
    """The target of a URL, or a short sentence saying why it is refused. Does not use the network.

    Only the form of a host name is checked here; its addresses are checked when a connection is opened.
    """
    if len(url) > longest:
        return f"the URL has more than {longest} characters"
    if not url.isascii():
        return "the URL must be ASCII: write the host in its xn-- form and percent-encode the path"
    if any(character <= " " or character in '\\"<>^`{|}\x7f' for character in url):
        return "the URL contains a character that must be percent-encoded"
    match = _URL.fullmatch(url)
    if match is None:
        return "it is not a valid URL, such as https://example.com/hooks"
    scheme = match["scheme"].lower()
    if scheme != "https" and not (allow_http and scheme == "http"):
        return "the URL must start with https://"
    if match["userinfo"] is not None:
        return "the URL must not contain a user name or password"
    port = int(match["port"]) if match["port"] else {"https": 443, "http": 80}[scheme]
    if not 1 <= port <= 65535:
        return "the port must be between 1 and 65535"
    host = match["host"] if match["ipv6"] is None else match["ipv6"]
    address = _ipv6(host) if match["ipv6"] is not None else _ipv4_or_name(host)
    if isinstance(address, str):
        return address
    if address is not None and not is_allowed(address, allowed_networks):
        return "the address is not public"
    return Target(scheme, host.lower(), port, address)


def check_url(url: str, *, allow_http: bool, allowed_networks: Sequence[Network] = ()) -> str | None:
    """Why a URL must not be saved as a destination, or None if it may."""
    target = parse_url(url, allow_http=allow_http, allowed_networks=allowed_networks)
    return target if isinstance(target, str) else None


def _ipv6(text: str) -> IPv6Address | str:
    if "%" in text:
        return "the host must not have a zone id"
    try:
        return IPv6Address(text)
    except ValueError:
        return "the host is not an IPv6 address"


def _ipv4_or_name(host: str) -> IPv4Address | str | None:
    labels = host.split(".")
    # A host whose last label is a number is an IPv4 address to every resolver: 0177.0.0.1, 0x7f.1, 2130706433, 127.1.
    # Only the plain form is accepted, so that the checked address is the one connected to.
    if _NUMBER.fullmatch(labels[-1]):
        if not _IPV4.fullmatch(host):
            return "an IPv4 address must be four decimal numbers"
        try:
            address = ip_address(host)
        except ValueError:
            return "the host is not an IPv4 address"
        assert isinstance(address, IPv4Address)
        return address
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        return "the host is not a valid name"
    return None
