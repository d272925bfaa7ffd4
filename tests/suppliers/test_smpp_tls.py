"""TLS: a session is opened only with the right name and authority."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import socket
import ssl
import sys
import termios
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import UUID

import pytest
from smpp_peer import Peer, PeerAccount, until
from structlog.testing import capture_logs

from heliograph.base.process.settings import SettingsError
from heliograph.suppliers import kinds, probing
from heliograph.suppliers.contract import Account, Verdict
from heliograph.suppliers.smpp import tls
from heliograph.suppliers.smpp.settings import SmppSettings
from heliograph.suppliers.smpp.tls import tls_context
from tests.certificates import Authority, verify_strictly
from tests.ports import held_port


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def held() -> Iterator[int]:
    """A port that nobody else has."""
    with held_port() as port:
        yield port


@pytest.fixture
async def peer(held: int, authority: Authority) -> AsyncIterator[Peer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("smsc.example"))
    peer = await Peer().start(tls=context, port=held)
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


@pytest.fixture
def successor(tmp_path: Path) -> Authority:
    """An authority of the same name with another key, as after a renewal."""
    (tmp_path / "successor").mkdir()
    return Authority(tmp_path / "successor")


async def _renewed(peer: Peer, authority: Authority) -> Peer:
    """Ends the peer's sessions, and starts another on its port with a certificate from `authority`."""
    await peer.stop()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("smsc.example"))
    return await Peer().start(tls=context, port=peer.port)


async def test_a_renewed_authority_is_trusted_from_the_next_connection_on(
    peer: Peer, authority: Authority, successor: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files were read once, until the account's settings changed or the worker was restarted."""
    account = await PeerAccount(peer.port, tls=True, tls_ca_file=authority.file, tls_server_name="smsc.example").start()
    Path(authority.file).write_bytes(Path(successor.file).read_bytes())
    readers: list[int] = []

    def read(settings: SmppSettings) -> ssl.SSLContext | None:
        readers.append(threading.get_ident())
        return tls_context(settings)

    monkeypatch.setattr(tls, "tls_context", read)
    second = await _renewed(peer, successor)
    await until(lambda: second.binds == 1 and account.connector.health().sessions == 1)
    assert readers
    assert threading.get_ident() not in readers, "meanwhile, other sessions are served"
    await account.connector.stop(grace=1)
    await second.stop()


async def test_a_renewed_client_certificate_is_presented(authority: Authority, successor: Authority, held: int) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_verify_locations(authority.file)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(authority.issue("127.0.0.1"))
    peer = await Peer().start(tls=context, port=held)
    ours = authority.issue("esme.example")
    account = await PeerAccount(peer.port, tls=True, tls_ca_file=authority.file, tls_certificate_file=ours).start()
    await peer.stop()
    Path(ours).write_bytes(Path(successor.issue("esme.example")).read_bytes())
    only_the_new = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    only_the_new.load_verify_locations(successor.file)
    only_the_new.verify_mode = ssl.CERT_REQUIRED
    only_the_new.load_cert_chain(authority.issue("127.0.0.1"))
    second = await Peer().start(tls=only_the_new, port=held)
    await until(lambda: second.binds == 1 and account.connector.health().sessions == 1)
    await account.connector.stop(grace=1)
    await second.stop()


async def test_files_that_cannot_be_used_leave_the_earlier_ones_in_use(peer: Peer, authority: Authority) -> None:
    with capture_logs() as logged:
        account = PeerAccount(peer.port, tls=True, tls_ca_file=authority.file, tls_server_name="smsc.example")
        await account.start()
        Path(authority.file).write_text("half written")
        second = await _renewed(peer, authority)
        await until(lambda: second.binds == 1 and account.connector.health().sessions == 1)
    assert "TLS files cannot be used, so the earlier ones stay in use" in [entry["event"] for entry in logged]
    await account.connector.stop(grace=1)
    await second.stop()


@pytest.mark.parametrize(
    ("setting", "content", "why"),
    [
        ("tls_ca_file", None, "tls_ca_file cannot be used: No such file or directory"),
        ("tls_ca_file", "half written", "tls_ca_file cannot be used: it contains no certificate"),
        ("tls_certificate_file", None, "tls_certificate_file, tls_key_file cannot be used: No such file or directory"),
        (
            "tls_key_file",
            "half written",
            "tls_certificate_file, tls_key_file cannot be used: no certificate and key in PEM format that belong"
            " together",
        ),
    ],
)
async def test_a_file_that_cannot_be_used_is_named(
    peer: Peer, authority: Authority, tmp_path: Path, setting: str, content: str | None, why: str
) -> None:
    """It was OpenSSL's error, or "No such file or directory" of some file; and the connection test of a page
    read that the database does not answer."""
    whole = authority.issue("esme.example")
    files = {"tls_ca_file": authority.file, "tls_certificate_file": whole, "tls_key_file": whole}
    files[setting] = str(tmp_path / "other.pem")
    if content is not None:
        Path(files[setting]).write_text(content)
    with pytest.raises(SettingsError) as refused:
        PeerAccount(peer.port, tls=True, **files)
    assert str(refused.value) == why
    assert await probed(peer, files) == ("tls", why)


async def probed(peer: Peer, files: dict[str, str]) -> tuple[str, str]:
    """The step at which a connection test ends, and what it says."""
    settings = {"host": "127.0.0.1", "port": peer.port, "system_id": "esme", "tls": True} | files
    last = (await probing.probe(kinds.SMPP, Account(UUID(int=1), settings, "secret")))[-1]
    return last.name, last.said


async def test_a_key_with_a_passphrase_is_refused_and_not_asked_for(
    peer: Peer, authority: Authority, tmp_path: Path
) -> None:
    """On a terminal, OpenSSL asked for the passphrase, and the process did nothing else until it was entered."""
    sealed = authority.issue("esme.example", passphrase="geheim")
    program = (
        "import sys; from heliograph.suppliers.smpp.settings import settings_from;"
        " from heliograph.suppliers.smpp.tls import tls_context;"
        f" tls_context(settings_from(dict(host='h', port=1, system_id='a', tls_certificate_file={sealed!r})))"
    )
    leader, terminal = pty.openpty()

    def control() -> None:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program),
            stdin=terminal,
            stdout=terminal,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=control,
        )
        try:
            _, told = await asyncio.wait_for(process.communicate(), 120)
        finally:
            if process.returncode is None:
                process.kill()
    finally:
        os.close(leader)
        os.close(terminal)
    assert "tls_certificate_file cannot be used: the key is encrypted" in told.decode()


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


async def test_an_expired_certificate_is_named(authority: Authority) -> None:
    """OpenSSL's error was shown as it is, with a line of its source."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("127.0.0.1", days=-1))
    peer = await Peer().start(tls=context)
    account = PeerAccount(peer.port, tls=True, tls_ca_file=authority.file)
    await account.connector.start()
    expected = "cannot connect: its certificate cannot be verified: certificate has expired"
    await until(lambda: account.connector.health().last_error == expected)
    assert peer.read == []
    await account.connector.stop(grace=1)
    await peer.stop()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_missing_client_certificate_is_told(authority: Authority, version: ssl.TLSVersion) -> None:
    """With TLS 1.3 the refusal comes after the handshake: it was shown for a moment, then as a lost connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_verify_locations(authority.file)
    context.verify_mode, context.maximum_version = ssl.CERT_REQUIRED, version
    context.load_cert_chain(authority.issue("127.0.0.1"))
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        # asyncio's servers close without the alert.
        while True:
            try:
                one, _ = listener.accept()
            except OSError:
                return
            one.settimeout(60)
            with context.wrap_socket(one, server_side=True, do_handshake_on_connect=False) as secure:
                with contextlib.suppress(OSError):
                    secure.do_handshake()
                # Closing with unread octets would reset the connection, and the alert might be lost.
                with contextlib.suppress(OSError):
                    while socket.socket.recv(secure, 4096):
                        pass

    thread = threading.Thread(target=serve)
    thread.start()
    account = PeerAccount(listener.getsockname()[1], tls=True, tls_ca_file=authority.file)
    await account.connector.start()
    try:
        with capture_logs() as logged:
            await until(lambda: sum(entry["event"] == "SMPP down" for entry in logged) > 1)
        words = "no TLS session" if version is ssl.TLSVersion.TLSv1_2 else "the server wants another client certificate"
        assert words in account.connector.health().last_error
        assert all(words in entry["error"] for entry in logged if entry["event"] == "SMPP down")
    finally:
        await account.connector.stop(grace=1)
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


async def test_a_handshake_that_stands_still_is_told_as_one(authority: Authority) -> None:
    """A listener that accepts the connection and says nothing: the error was TimeoutError."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        account = PeerAccount(listener.getsockname()[1], tls=True, tls_ca_file=authority.file, connect_seconds=0.1)
        await account.connector.start()
        await until(lambda: account.connector.health().last_error == "cannot connect: no answer within 0.1 s")
        await account.connector.stop(grace=1)


async def test_a_plain_server_behind_a_tls_setting_is_an_error_like_another() -> None:
    peer = await Peer().start()
    account = PeerAccount(peer.port, tls=True, tls_verify=False, connect_seconds=0.5)
    await account.connector.start()
    await until(lambda: "cannot connect" in account.connector.health().last_error)
    await account.connector.stop(grace=1)
    await peer.stop()
