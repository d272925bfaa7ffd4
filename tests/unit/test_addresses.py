"""The address rule and the form of URLs, case by case."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base.network.addresses import check_url, is_allowed, parse_networks, parse_url


def words(text: str) -> list[str]:
    return text.split()


REFUSED = words("""
    0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.127.255.255 127.0.0.1 127.1.2.3 169.254.169.254
    172.16.0.1 172.31.255.255 192.0.0.1 192.0.0.9 192.0.0.170 192.0.2.1 192.88.99.1 192.168.0.1 198.18.0.1
    198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
    :: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:0:127.0.0.1
    64:ff9b::127.0.0.1 64:ff9b::a9fe:a9fe 64:ff9b::10.0.0.1 64:ff9b:1::1 64:ff9b:1::8.8.8.8 100::1
    2001::1 2001:0:7f00:1:: 2001:10::1 2001:1ff::1 2001:db8::1 2002:7f00:1:: 2002:a9fe:a9fe:: 2002:808:808::
    3fff::1 3fff:fff::1 4000::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 fec0::1 ff02::1 ff0e::1 1fff:ffff::1
""")
PUBLIC = words("""
    1.1.1.1 8.8.8.8 93.184.216.34 100.63.255.255 100.128.0.1 172.32.0.1 192.1.0.1 198.20.0.1 223.255.255.254
    2001:200::1 2001:4860:4860::8888 2003::1 2400::1 2606:4700::1111 2a00:1450::1 3ffe::1
    ::ffff:8.8.8.8 64:ff9b::8.8.8.8
""")


@pytest.mark.parametrize("text", REFUSED)
def test_an_address_that_is_not_public_is_refused(text: str) -> None:
    assert not is_allowed(ip_address(text))


@pytest.mark.parametrize("text", PUBLIC)
def test_a_public_address_is_allowed(text: str) -> None:
    assert is_allowed(ip_address(text))


@given(st.ip_addresses(v=4))
def test_wrapping_an_ipv4_address_changes_nothing(address: IPv4Address) -> None:
    for prefix in (0xFFFF << 32, 0x64FF9B << 96):
        assert is_allowed(IPv6Address(prefix | int(address))) == is_allowed(address)


@given(st.ip_addresses(v=6))
def test_no_ipv6_address_outside_the_unicast_block_is_allowed(address: IPv6Address) -> None:
    wrapped = int(address) >> 32 in (0xFFFF, 0x64FF9B << 64)
    if is_allowed(address) and not wrapped:
        assert 0x2000 <= int(address) >> 112 <= 0x3FFF


def test_networks_of_the_settings_are_allowed_and_nothing_beside_them() -> None:
    networks = parse_networks("10.1.0.0/16, fd00:1::/32,127.0.0.0/8")
    assert is_allowed(ip_address("10.1.2.3"), networks)
    assert is_allowed(ip_address("::ffff:10.1.2.3"), networks)
    assert is_allowed(ip_address("fd00:1::9"), networks)
    assert not is_allowed(ip_address("10.2.0.1"), networks)
    assert not is_allowed(ip_address("fd00:2::1"), networks)
    assert not is_allowed(ip_address("fd00:1::9%eth0"), networks)
    assert parse_networks("") == ()
    with pytest.raises(ValueError):
        parse_networks("10.0.0.1/8")


GOOD_URLS = [
    "https://example.com/hook",
    "https://EXAMPLE.com",
    "https://example.com:8443/a/b?c=d&e=%20f#g",
    "https://xn--bcher-kva.example/",
    "https://8.8.8.8/hook",
    "https://[2606:4700::1111]:8443/hook",
    "https://receiver/hook",
    "https://a_b.example.com/",
    "https://1.example.com/",
    "https://example.com?x=1",
]


@pytest.mark.parametrize("url", GOOD_URLS)
def test_a_good_url_may_be_saved(url: str) -> None:
    assert check_url(url, allow_http=False) is None


BAD_HOSTS = [
    *words("""
    127.0.0.1 10.0.0.1 169.254.169.254 0.0.0.0 127.0.0.1. 127.1 127.0.1 2130706433 0177.0.0.1 0177.1 017700000001
    0x7f.0.0.1 0x7f000001 0X7F.1 0x 127.0.0.01 127.0.0.256 1.2.3.4.5 256.256.256.256 8.8.8.8. 08.8.8.8 example.com.
    [::1] [::ffff:127.0.0.1] [0:0:0:0:0:ffff:7f00:1] [64:ff9b::7f00:1] [fe80::1] [fe80::1%25eth0] [fe80::1%eth0]
    [2606:4700::1111%25eth0] [::ffff:8.8.8.8.8] [] [v1.x] [127.0.0.1] ::1 2001:db8::1
    １２７.０.０.１ ①②⑦.0.0.1 127。0。0。1 bücher.example localhost\u200b example.com\u3002
    -a.example a-.example a..example .example a,b.example %31%32%37.0.0.1 example.com%00 exa%6dple.com
"""),
    "",
    "a" * 64 + ".example",
    ".".join(["a" * 60] * 5),
    "example .com",
    "example.com\\@127.0.0.1",
]


@pytest.mark.parametrize("host", BAD_HOSTS)
def test_a_bad_host_is_refused(host: str) -> None:
    for url in (f"https://{host}/", f"https://{host}", f"https://{host}:443/x"):
        assert check_url(url, allow_http=False), url


BAD_URLS = [
    "",
    "https",
    "https:/example.com",
    "https:example.com",
    "//example.com/",
    "http://example.com/",
    "ftp://example.com/",
    "file:///etc/passwd",
    "gopher://example.com/",
    "https://user@example.com/",
    "https://user:password@example.com/",
    "https://@example.com/",
    "https://8.8.8.8@127.0.0.1/",
    "https://127.0.0.1#@example.com/",
    "https://127.0.0.1?@example.com/",
    "https://example.com:0/",
    "https://example.com:65536/",
    "https://example.com:/",
    "https://example.com:80:80/",
    "https://example.com:+80/",
    "https://example.com:٨٠/",
    "https://example.com/\r\nx: y",
    "https://example.com/a b",
    "https://example.com/\tb",
    " https://example.com/",
    "https://example.com/ü",
    "https://example.com\\.evil.example/",
    "https://example.com/" + "a" * 2048,
]


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_bad_url_is_refused(url: str) -> None:
    assert check_url(url, allow_http=False)


def test_http_is_a_matter_of_the_settings() -> None:
    assert check_url("http://example.com/", allow_http=True) is None
    assert check_url("ftp://example.com/", allow_http=True)


def test_the_longest_url_is_2048_characters() -> None:
    url = "https://example.com/"
    assert check_url(url + "a" * (2048 - len(url)), allow_http=False) is None
    assert check_url(url + "a" * (2049 - len(url)), allow_http=False)


def test_a_target_names_what_would_be_connected_to() -> None:
    target = parse_url("https://[2606:4700::1111]/x", allow_http=False)
    assert not isinstance(target, str)
    assert (target.host, target.port, target.address) == ("2606:4700::1111", 443, ip_address("2606:4700::1111"))
    target = parse_url("http://127.0.0.1:81", allow_http=True, allowed_networks=parse_networks("127.0.0.0/8"))
    assert not isinstance(target, str)
    assert (target.scheme, target.port, target.address) == ("http", 81, ip_address("127.0.0.1"))


@given(st.text(max_size=60))
def test_no_text_makes_the_check_raise(text: str) -> None:
    check_url(text, allow_http=True)
    check_url("https://" + text, allow_http=True)
