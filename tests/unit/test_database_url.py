"""The database's URL: hosts, TLS and keep-alives as libpq reads them, and parameters that are refused."""

from __future__ import annotations

import pwd

import pytest

from heliograph.base.database.url import Host, KeepAlive, UrlError, for_programs, is_local, parse, role_of, shown
from heliograph.base.network.connecting import Connector


def hosts(url: str) -> list[tuple[str, int | None]]:
    return [(host.name, host.port) for host in parse(url).hosts]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u:p@one/db", [("one", None)]),
        ("postgresql://u:p@one:5433,two:5434,three/db", [("one", 5433), ("two", 5434), ("three", None)]),
        ("postgresql://u@[::1]:5433,[fe80::2]/db", [("::1", 5433), ("fe80::2", None)]),
        ("postgres:///db", [("", None)]),
        ("postgresql:///db?host=/run/postgresql&port=5433", [("/run/postgresql", 5433)]),
        ("postgresql://u@/db?host=a,b&port=1,2", [("a", 1), ("b", 2)]),
        ("postgresql://u@/db?host=a,b&port=7", [("a", 7), ("b", 7)]),
        ("postgresql://u@%2Frun%2Fpg/db", [("/run/pg", None)]),
    ],
)
def test_hosts_and_ports(url: str, expected: list[tuple[str, int | None]]) -> None:
    assert hosts(url) == expected


def test_several_hosts_have_less_time_each_and_mean_the_one_that_takes_writes() -> None:
    one, two = parse("postgresql://one/db"), parse("postgresql://one,two/db")
    assert (one.attributes, two.attributes) == ("any", "read-write")
    assert 1 <= two.timeout <= 2 < one.timeout
    assert parse("postgresql://one,two/db?connect_timeout=7&target_session_attrs=any").timeout == 7
    assert parse("postgresql://one,two/db?target_session_attrs=any").attributes == "any"
    assert parse("postgresql://one,two/db?load_balance_hosts=random").shuffled


def test_what_is_settled_here_does_not_reach_the_server_as_a_setting_of_its_own() -> None:
    """asyncpg passes unknown parameters to the server, which refuses the connection."""
    target = parse(
        "postgresql://u:p%40@one/db?connect_timeout=3&keepalives=1&keepalives_idle=20&keepalives_interval=5"
        "&keepalives_count=4&tcp_user_timeout=9000&gssencmode=disable&channel_binding=prefer&sslsni=1"
        "&load_balance_hosts=disable&sslmode=verify-full&sslrootcert=/etc/ca.pem&application_name=x"
    )
    assert target.url == (
        "postgresql://u:p%40@/db?sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem&application_name=x"
    ).replace("%2F", "/")
    assert target.keep_alive == KeepAlive(True, 20, 5, 4, 9000)
    assert target.hosts == (Host("one", None),)
    assert target.sslmode == "verify-full"
    assert parse("postgresql://one/db?keepalives=0").keep_alive.wanted is False


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u%40x:p%2Bq+r@one:5433,two/db", ("u@x", "p+q+r")),
        ("postgresql://one/db?user=u%40x&password=p+q%20r", ("u@x", "p+q r")),
        ("postgresql://u@/db?host=/run/postgresql&user=other&password=p", ("u", "p")),
        ("postgresql:///db", ("", "")),
    ],
)
def test_the_role_and_its_password_may_stand_in_two_places(url: str, expected: tuple[str, str]) -> None:
    assert role_of(url) == expected


def test_a_plus_is_not_a_space() -> None:
    """As for libpq; asyncpg would take it for one."""
    assert parse("postgresql://one/db?user=u&password=p+q&sslrootcert=/c++/ca.pem").url == (
        "postgresql:///db?user=u&password=p%2Bq&sslrootcert=/c%2B%2B/ca.pem"
    )
    assert parse("postgresql://one/db?sslrootcert=/c++/ca.pem").files == (("sslrootcert", "/c++/ca.pem"),)


def test_the_roots_of_the_system_need_the_name_as_well() -> None:
    target = parse("postgresql://one/db?sslrootcert=system")
    assert (target.system_roots, target.sslmode) == (True, "verify-full")
    assert "ssl" not in target.url
    with pytest.raises(UrlError, match="verify-full"):
        parse("postgresql://one/db?sslrootcert=system&sslmode=require")


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("channel_binding=require", "channel_binding"),
        ("gssencmode=require", "gssencmode"),
        ("requirepeer=postgres", "requirepeer"),
        ("hostaddr=10.0.0.1", "hostaddr"),
        ("sslcrldir=/etc/crl", "sslcrldir"),
        ("sslmode=verify_full", "sslmode"),
        ("connect_timeout=soon", "connect_timeout"),
        ("load_balance_hosts=yes", "load_balance_hosts"),
        ("target_session_attrs=master", "target_session_attrs"),
        ("port=0", "port"),
        ("host=a,b,c&port=1,2", "port"),
    ],
)
def test_what_nobody_would_honour_is_refused_by_name(query: str, named: str) -> None:
    with pytest.raises(UrlError, match=named):
        parse(f"postgresql://u@/db?{query}")


@pytest.mark.parametrize("url", ["mysql://one/db", "one/db", "", "postgresql://one:port/db"])
def test_what_is_no_url_of_a_database_is_said(url: str) -> None:
    with pytest.raises(UrlError):
        parse(url)


@pytest.mark.parametrize(
    "password", ["p@ss/word", "1234/word", "p@ss#word", "word#1", "p?word", "p[word", "p@ss?word", "p/word"]
)
def test_a_password_that_was_not_escaped_is_not_taken_for_a_host(password: str) -> None:
    url = f"postgresql://ana:{password}@db/x"
    with pytest.raises(UrlError, match="must be escaped"):
        parse(url)
    assert shown(url) == "an invalid address"


def test_the_only_character_that_needs_no_escape_where_it_is_clear() -> None:
    assert shown("postgresql://ana:p@ss@db/x") == "db:5432/x"


@pytest.mark.parametrize(
    ("name", "local"),
    [
        *((name, True) for name in ("", "/run/postgresql", "localhost", "127.0.0.2", "::1")),
        *((name, False) for name in ("db.example.net", "10.0.0.1", "localhost.example.net")),
    ],
)
def test_what_is_local(name: str, local: bool) -> None:
    assert is_local(name) is local


@pytest.mark.parametrize(
    ("url", "shown", "password"),
    [
        ("ana:p%40ss@db/x?sslmode=require", "ana@db/x?sslmode=require", "p@ss"),
        ("ana@db/x?password=p%40ss&sslmode=require", "ana@db/x?sslmode=require", "p@ss"),
        ("ana@db/x", "ana@db/x", ""),
        ("ana:p@db/x?sslkey=/k&sslpassword=s", "ana@db/x?sslkey=/k", "p"),
        # The first of these may be a standby, which lacks the latest responses.
        ("ana:p@one,two:5433/x", "ana@one,two:5433/x?target_session_attrs=read-write", "p"),
        ("ana@one,two/x?target_session_attrs=primary", "ana@one,two/x?target_session_attrs=primary", ""),
        ("ana@one,two/x?target_session_attrs=any", "ana@one,two/x", ""),
    ],
)
def test_programs_get_no_password_in_their_command_line_and_the_host_that_we_use(
    url: str, shown: str, password: str
) -> None:
    watched = "keepalives_idle=10&keepalives_interval=3&keepalives_count=3&tcp_user_timeout=10000"
    expected = f"postgresql://{shown}{'&' if '?' in shown else '?'}{watched}"
    assert for_programs(f"postgresql://{url}") == (expected, password)


def test_programs_watch_over_their_connections_as_the_url_says() -> None:
    told, _ = for_programs("postgresql://ana@db/x?tcp_user_timeout=9000&keepalives_idle=7&keepalives_interval=2")
    assert told.endswith("?tcp_user_timeout=9000&keepalives_idle=7&keepalives_interval=2&keepalives_count=3")


@pytest.fixture
def nameless(monkeypatch: pytest.MonkeyPatch) -> None:
    """An account without a name, as in a container started with an arbitrary user ID."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "PGUSER", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)


@pytest.mark.usefixtures("nameless")
def test_an_account_without_a_name_has_to_name_the_databases_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("postgresql:///db", "postgresql://one/db", "postgresql://:word@one,two/db"):
        with pytest.raises(UrlError, match=r"names no user, and this account has no name .* PGUSER"):
            Connector(url)
    for url in ("postgresql://u@one/db", "postgresql://one/db?user=u", "postgresql://one/db?service=s"):
        Connector(url)
    monkeypatch.setenv("PGUSER", "u")
    Connector("postgresql:///db")
