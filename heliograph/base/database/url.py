"""The database's URL, interpreted as libpq does: hosts, TLS, and keep-alives. Pure: no I/O.

asyncpg parses most of a URL itself. This file handles the rest: a time limit for each of several hosts, keep-alives,
`sslrootcert=system`, and parameters that must be refused because nothing would honour them. Sources: the chapter
"Database Connection Control Functions" of PostgreSQL's manual, and asyncpg's `connect_utils.py`.
"""

from __future__ import annotations

import ipaddress
import urllib.parse

import msgspec

#: Seconds for one of several hosts, and for a single one; `connect_timeout` in the URL wins.
OF_SEVERAL, ALONE = 2.0, 5.0
#: Parameters of libpq that make no difference here.
IDLE = frozenset({"client_encoding", "fallback_application_name", "sslcompression", "sslsni", "gssdelegation"})
#: Parameters of libpq that nothing here honours, and their values that are harmless.
REFUSED = {
    "hostaddr": (),
    "gssencmode": ("disable", "prefer"),
    "channel_binding": ("disable", "prefer"),
    "requirepeer": (),
    "require_auth": (),
    "sslcertmode": ("allow",),
    "sslcrldir": (),
    "replication": ("false", "off", "no", "0"),
}
FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
#: Parameters that PostgreSQL's programs do not get unchanged.
UNTOLD = ("password", "sslpassword", "target_session_attrs")
KINDS = ("any", "read-write", "read-only", "primary", "standby", "prefer-standby")
ENCRYPTION = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


UNESCAPED = (
    "the user or the password in the database's URL contains a character that must be escaped there: / as %2F, ? as"
    " %3F, # as %23, [ as %5B, ] as %5D, @ as %40"
)


class UrlError(ValueError):
    """The URL requests something unsupported; the message names the parameter."""


class Host(msgspec.Struct, frozen=True):
    """One server to try. `name` is empty if the URL names none: then asyncpg chooses it."""

    name: str
    port: int | None


class KeepAlive(msgspec.Struct, frozen=True):
    """How a connection finds out that its other end is gone: seconds, and milliseconds for `user_timeout`."""

    wanted: bool = True
    idle: int = 10
    interval: int = 3
    count: int = 3
    user_timeout: int = 10_000


#: The same, as libpq's parameters.
WATCHED = {
    "keepalives_idle": KeepAlive().idle,
    "keepalives_interval": KeepAlive().interval,
    "keepalives_count": KeepAlive().count,
    "tcp_user_timeout": KeepAlive().user_timeout,
}


class Target(msgspec.Struct, frozen=True):
    """A parsed URL."""

    #: For asyncpg: the URL without what is handled here.
    url: str
    hosts: tuple[Host, ...]
    #: Time limit per host, seconds.
    timeout: float
    #: `target_session_attrs`; several hosts without it mean the one that accepts writes.
    attributes: str
    #: Whether hosts are tried in random order for each connection.
    shuffled: bool
    keep_alive: KeepAlive
    #: Whether the server's certificate is verified against the system's certificate authorities.
    system_roots: bool
    sslmode: str
    #: (parameter, path) of files that must be readable.
    files: tuple[tuple[str, str], ...]
    #: Whether it names the user, itself or through a service.
    has_user: bool


def parse(url: str) -> Target:
    """Parse a URL. Raises UrlError."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:  # a bracket that belongs to no IPv6 address
        raise UrlError(UNESCAPED) from None
    if parts.scheme not in ("postgresql", "postgres"):
        raise UrlError("the database's URL must begin with postgresql://")
    # Otherwise the rest of the password would be taken for host and database, shown in logs, and looked up by name.
    if parts.fragment or "@" in parts.path:
        raise UrlError(UNESCAPED)
    credentials, at, netloc = parts.netloc.rpartition("@")
    given = _parameters(parts.query)
    names = given.pop("host", "") or netloc
    ports = given.pop("port", "")
    hosts = _hosts(names, ports)
    for name, harmless in REFUSED.items():
        value = given.pop(name, None)
        if value is not None and value not in harmless:
            raise UrlError(f"`{name}={value}` in the database's URL is not supported")
    for name in IDLE:
        given.pop(name, None)
    keep_alive = KeepAlive(
        wanted=_number(given, "keepalives", 1) != 0,
        idle=_number(given, "keepalives_idle", 0) or KeepAlive().idle,
        interval=_number(given, "keepalives_interval", 0) or KeepAlive().interval,
        count=_number(given, "keepalives_count", 0) or KeepAlive().count,
        user_timeout=_number(given, "tcp_user_timeout", 0) or KeepAlive().user_timeout,
    )
    patience = _number(given, "connect_timeout", 0)
    balance = given.pop("load_balance_hosts", "disable")
    if balance not in ("disable", "random"):
        raise UrlError("`load_balance_hosts` in the database's URL must be `disable` or `random`")
    sslmode = given.get("sslmode", "")
    if sslmode and sslmode not in ENCRYPTION:
        raise UrlError(f"`sslmode` in the database's URL must be one of {', '.join(ENCRYPTION)}")
    system_roots = given.get("sslrootcert") == "system"
    if system_roots:
        # Like libpq: public authorities prove nothing without checking the host name.
        if sslmode not in ("", "verify-full"):
            raise UrlError("`sslrootcert=system` in the database's URL requires `sslmode=verify-full`")
        del given["sslrootcert"]
        given.pop("sslmode", None)
        sslmode = "verify-full"
    several = len(hosts) > 1
    attributes = given.pop("target_session_attrs", "") or ("read-write" if several else "any")
    if attributes not in KINDS:
        raise UrlError(f"`target_session_attrs` in the database's URL must be one of {', '.join(KINDS)}")
    query = urllib.parse.urlencode(given, quote_via=urllib.parse.quote, safe="/")
    return Target(
        url=f"{parts.scheme}://{credentials}{at}{parts.path}" + (f"?{query}" if query else ""),
        hosts=hosts,
        timeout=float(patience) if patience > 0 else OF_SEVERAL if several else ALONE,
        attributes=attributes,
        shuffled=balance == "random",
        keep_alive=keep_alive,
        system_roots=system_roots,
        sslmode=sslmode,
        files=tuple((name, given[name]) for name in FILES if given.get(name)),
        has_user=bool(credentials.partition(":")[0] or given.get("user") or given.get("service")),
    )


def role_of(url: str) -> tuple[str, str]:
    """The role that a URL names, and its password, wherever in the URL they are; empty: it does not. Raises
    UrlError."""
    parts = urllib.parse.urlsplit(url)
    given = _parameters(parts.query)
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    unquoted = urllib.parse.unquote
    return unquoted(user) or given.get("user", ""), unquoted(password) or given.get("password", "")


def for_programs(url: str) -> tuple[str, str]:
    """The URL for PostgreSQL's own programs, without passwords, and the role's password: command lines are visible to
    other users of a machine. Only for connections without TLS, which those programs lack (`embedded/tunnel.py`).

    Of several hosts they would take the first that answers, even a standby that is behind, so the URL asks for the kind
    of host that our own connections use. Raises UrlError.
    """
    target, parts = parse(url), urllib.parse.urlsplit(url)
    credentials, at, hosts = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    given = [(name, value) for name, _, value in (one.partition("=") for one in parts.query.split("&") if one)]
    kept = [f"{name}={value}" for name, value in given if name not in UNTOLD]
    if target.attributes != "any":
        kept.append(f"target_session_attrs={target.attributes}")
    # By default they would notice after two hours that the other end is gone.
    kept += [f"{name}={value}" for name, value in WATCHED.items() if name not in dict(given)]
    password = password or dict(given).get("password", "")
    return parts._replace(netloc=f"{user}{at}{hosts}", query="&".join(kept)).geturl(), urllib.parse.unquote(password)


def is_local(name: str) -> bool:
    """Whether a host is reached without a network: this machine's sockets and loopback."""
    if not name or name.startswith("/") or name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _parameters(query: str) -> dict[str, str]:
    """The parameters of a URL, in which + is not a space, as it is in forms. Raises UrlError."""
    plain = query.replace("+", "%2B")
    try:
        return dict(urllib.parse.parse_qsl(plain, strict_parsing=bool(plain), keep_blank_values=True))
    except ValueError:
        raise UrlError(UNESCAPED if "@" in query else "the database's URL has a malformed query") from None


def _hosts(names: str, ports: str) -> tuple[Host, ...]:
    found = []
    listed = names.split(",")
    numbers = ports.split(",") if ports else [""]
    if len(numbers) not in (1, len(listed)):
        raise UrlError("`port` in the database's URL must give one port, or one for each host")
    for place, item in enumerate(listed):
        text = urllib.parse.unquote(item)
        port = numbers[place] if len(numbers) > 1 else numbers[0]
        if text.startswith("["):
            name, _, rest = text[1:].partition("]")
            port = rest.removeprefix(":") or port
        elif text.startswith("/"):
            name = text
        else:
            name, _, own = text.partition(":") if text.count(":") <= 1 else (text, "", "")
            port = own or port
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise UrlError("a port in the database's URL is not a number from 1 to 65535")
        if not name and len(listed) > 1:
            name = "localhost"
        found.append(Host(name, int(port) if port else None))
    return tuple(found)


def _number(given: dict[str, str], name: str, default: int) -> int:
    text = given.pop(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise UrlError(f"`{name}` in the database's URL must be a whole number, not {text!r}") from None


def shown(url: str) -> str:
    """A database's address without user and password."""
    try:
        target = parse(url)
    except ValueError:
        return "an invalid address"
    hosts = ",".join(f"{host.name or 'the local socket'}:{host.port or 5432}" for host in target.hosts)
    return hosts + urllib.parse.urlsplit(url).path
