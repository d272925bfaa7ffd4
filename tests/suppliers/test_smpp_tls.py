"""TLS: a session is opened only with the right name and authority."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from smpp_peer import Peer, PeerAccount, until

from heliograph.suppliers.contract import Verdict
from tests.certificates import Authority, verify_strictly


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def peer(authority: Authority) -> AsyncIterator[Peer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("smsc.example"))
    peer = await Peer().start(tls=context)
    yield peer
    await peer.stop()


async def test_the_right_name(peer: Peer, authority: Authority) -> None:
    account = await PeerAccount(peer.port, tls=True, tls_ca_file=authority.file, tls_server_name="smsc.example").start()
    account.submit()
    assert (await account.ended())[0].verdict is Verdict.ACCEPTED
    await account.connector.stop(grace=1)


async def test_an_authority_that_leaves_out_what_rfc_5280_demands(
    peer: Peer, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.13 made this check the default; what worked before it goes on working."""
    verify_strictly(monkeypatch)
    account = await PeerAccount(peer.port, tls=True, tls_ca_file=authority.file, tls_server_name="smsc.example").start()
    await account.connector.stop(grace=1)


@pytest.mark.parametrize("name", ["other.example", ""])
async def test_a_wrong_name_sends_no_password(peer: Peer, authority: Authority, name: str) -> None:
    account = PeerAccount(peer.port, tls=True, tls_ca_file=authority.file, tls_server_name=name)
    await account.connector.start()
    await until(lambda: "certificate" in account.connector.health().last_error)
    assert peer.read == []
    account.submit()
    assert (await account.ended())[0].verdict is Verdict.UNREACHABLE
    await account.connector.stop(grace=1)


async def test_an_unknown_authority_sends_no_password(peer: Peer) -> None:
    account = PeerAccount(peer.port, tls=True, tls_server_name="smsc.example")
    await account.connector.start()
    await until(lambda: "certificate" in account.connector.health().last_error)
    assert peer.read == []
    await account.connector.stop(grace=1)


async def test_checking_may_be_switched_off(peer: Peer) -> None:
    account = await PeerAccount(peer.port, tls=True, tls_verify=False).start()
    await account.connector.stop(grace=1)


async def test_a_client_certificate(authority: Authority) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_verify_locations(authority.file)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(authority.issue("127.0.0.1"))
    peer = await Peer().start(tls=context)
    account = await PeerAccount(
        peer.port, tls=True, tls_ca_file=authority.file, tls_certificate_file=authority.issue("esme.example")
    ).start()
    await account.connector.stop(grace=1)
    await peer.stop()


async def test_a_plain_server_behind_a_tls_setting_is_an_error_like_another() -> None:
    peer = await Peer().start()
    account = PeerAccount(peer.port, tls=True, tls_verify=False, connect_seconds=0.5)
    await account.connector.start()
    await until(lambda: "cannot connect" in account.connector.health().last_error)
    await account.connector.stop(grace=1)
    await peer.stop()
