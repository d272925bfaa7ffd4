"""The client's address according to trusted proxies: lists are read from the right, and nobody else is believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base.process.settings import Settings, SettingsError
from heliograph.http.proxies import TrustedProxies
from heliograph.http.proxy_protocol import LONGEST, LONGEST_LINE, SIGNATURE, NotProxied, read_prefix
from tests.proxying import prefix

PROXIES = "10.0.0.0/8, 2001:db8:1::/64"


def trust(says: str = "x-forwarded-for") -> TrustedProxies:
    return TrustedProxies(PROXIES, says)


@pytest.mark.parametrize(
    ("lines", "client"),
    [
        ([], "10.0.0.1"),
        ([b"192.0.2.1"], "192.0.2.1"),
        ([b"198.51.100.7, 192.0.2.1"], "192.0.2.1"),
        ([b"198.51.100.7", b"192.0.2.1"], "192.0.2.1"),
        ([b"198.51.100.7, 192.0.2.1, 10.1.2.3,10.0.0.9"], "192.0.2.1"),
        ([b"10.9.9.9, 10.1.2.3"], "10.9.9.9"),
        ([b"192.0.2.1:4711"], "192.0.2.1"),
        ([b"[2001:db8::7]:443"], "2001:db8::7"),
        ([b"2001:db8::7"], "2001:db8::7"),
        ([b"192.0.2.1, 2001:db8:1::5"], "192.0.2.1"),
        ([b"::ffff:192.0.2.1"], "192.0.2.1"),
        ([b"192.0.2.1, unknown"], ""),
        ([b"192.0.2.1, 10.0.0.300"], ""),
        ([b"192.0.2.1,"], ""),
        ([b""], ""),
        ([b"x" * 10_000 + b", 192.0.2.1"], "192.0.2.1"),
    ],
)
def test_x_forwarded_for_is_read_from_the_right(lines: list[bytes], client: str) -> None:
    headers = [(b"x-forwarded-for", line) for line in lines] + [(b"forwarded", b"for=203.0.113.9")]
    for _ in range(2):
        assert trust().client("10.0.0.1", headers) == client


@pytest.mark.parametrize(
    ("lines", "client"),
    [
        ([b"for=192.0.2.1"], "192.0.2.1"),
        ([b'For="192.0.2.1:80";proto=http;by=10.0.0.1'], "192.0.2.1"),
        ([b'proto=https; for = "[2001:db8::7]:4711"'], "2001:db8::7"),
        ([b"for=198.51.100.7, for=192.0.2.1;proto=https, for=10.0.0.4"], "192.0.2.1"),
        ([b"for=198.51.100.7", b"for=192.0.2.1"], "192.0.2.1"),
        ([b'by="a,b;for=203.0.113.9";for=192.0.2.1'], "192.0.2.1"),
        ([b"for=192.0.2.1, for=unknown"], ""),
        ([b"for=192.0.2.1, for=_hidden"], ""),
        ([b"for=192.0.2.1, proto=https"], ""),
        ([b'for="192.0.2.1'], ""),
        ([b"before=192.0.2.1"], ""),
        # A quote left open by the client is not closed by what the proxy appends.
        ([b'for=203.0.113.9;by=", for=192.0.2.1'], "192.0.2.1"),
        ([b'for=203.0.113.9;by="', b"for=192.0.2.1;proto=https"], "192.0.2.1"),
        ([b'for=203.0.113.9;by="a', b'for="192.0.2.1:80"'], "192.0.2.1"),
    ],
)
def test_forwarded_is_read_from_the_right(lines: list[bytes], client: str) -> None:
    headers = [(b"forwarded", line) for line in lines] + [(b"x-forwarded-for", b"203.0.113.9")]
    assert trust("forwarded").client("10.0.0.1", headers) == client


def test_only_named_networks_are_believed() -> None:
    known = trust()
    assert [known.covers(one) for one in ("10.1.1.1", "::ffff:10.1.1.1", "2001:db8:1::9")] == [True] * 3
    assert [known.covers(one) for one in ("11.1.1.1", "2001:db8:2::9", "", "unknown")] == [False] * 4
    assert not known.believes_headers_of("11.1.1.1")
    assert not trust("proxy-protocol").believes_headers_of("10.1.1.1")
    assert not TrustedProxies().covers("127.0.0.1")


@given(st.binary(max_size=200), st.sampled_from(["x-forwarded-for", "forwarded"]))
def test_whatever_is_said_is_an_address_or_none(value: bytes, says: str) -> None:
    assert isinstance(trust(says).client("10.0.0.1", [(says.encode(), value)]), str)


def test_settings_that_cannot_be_read_are_named() -> None:
    with pytest.raises(SettingsError, match="HELIOGRAPH_TRUSTED_PROXIES"):
        Settings(trusted_proxies="10.0.0.0/8, nonsense")
    with pytest.raises(SettingsError, match="HELIOGRAPH_PROXY_SAYS"):
        Settings(proxy_says="x-real-ip")


def test_a_prefix_says_who_the_client_is() -> None:
    for address in ("192.0.2.1", "2001:db8::7"):
        for further in (b"", b"\x04\x00\x03abc"):
            data = prefix(address, 4711, further=further)
            assert read_prefix(data + b"GET /") == (len(data), (address, 4711))
            assert all(read_prefix(data[:end]) is None for end in range(len(data)))
    assert read_prefix(prefix("::ffff:192.0.2.1", 1)) == (52, ("192.0.2.1", 1))
    assert read_prefix(SIGNATURE + b"\x20\x00\x00\x00") == (16, None)
    assert read_prefix(SIGNATURE + b"\x21\x00\x00\x03abc") == (19, None)  # of a family that we do not use


@pytest.mark.parametrize(
    ("line", "client"),
    [
        (b"PROXY TCP4 192.0.2.1 10.0.0.1 4711 80\r\n", ("192.0.2.1", 4711)),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 65535 80\r\n", ("2001:db8::7", 65_535)),
        (b"PROXY TCP6 ::ffff:192.0.2.1 ::1 1 80\r\n", ("192.0.2.1", 1)),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
    ],
)
def test_a_prefix_of_version_1_says_so_too(line: bytes, client: tuple[str, int] | None) -> None:
    assert read_prefix(line + b"GET /") == (len(line), client)
    assert all(read_prefix(line[:end]) is None for end in range(len(line)))


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"PROXY TCP4 192.0.2.1 10.0.0.1 4711 80\n",
        b"PROXY TCP4 192.0.2.1 10.0.0.1 4711\r\n",
        b"PROXY TCP4 192.0.2.1 10.0.0.1 4711 80 \r\n",
        b"PROXY TCP4 192.0.2.1 10.0.0.1 65536 80\r\n",
        b"PROXY TCP4 2001:db8::7 2001:db8::1 4711 80\r\n",
        b"PROXY TCP6 192.0.2.1 10.0.0.1 4711 80\r\n",
        b"PROXY TCP4 192.0.2.300 10.0.0.1 4711 80\r\n",
        b"PROXY UDP4 192.0.2.1 10.0.0.1 4711 80\r\n",
        b"PROXY  TCP4 192.0.2.1 10.0.0.1 4711 80\r\n",
        b"PROXY UNKNOWN " + b"x" * LONGEST_LINE,
        b"\r\n\r\n\0\r\nQUIX",
        SIGNATURE + b"\x11\x11\x00\x0c" + b"\0" * 12,
        SIGNATURE + b"\x22\x11\x00\x0c" + b"\0" * 12,
        SIGNATURE + b"\x21\x11\x00\x0b" + b"\0" * 11,
        SIGNATURE + b"\x21\x21\x00\x0c" + b"\0" * 12,
        SIGNATURE + b"\x21\x11" + LONGEST.to_bytes(2),
    ],
)
def test_what_is_no_prefix_is_refused(data: bytes) -> None:
    with pytest.raises(NotProxied):
        read_prefix(data)


@given(st.binary(max_size=60))
def test_a_prefix_is_read_or_refused_never_a_surprise(data: bytes) -> None:
    for start in (b"", SIGNATURE, SIGNATURE + b"\x21", b"PROXY ", b"PROXY TCP4 ", b"PROXY UNKNOWN "):
        try:
            found = read_prefix(start + data)
        except NotProxied:
            continue
        assert found is None or 15 <= found[0] <= len(start + data)
