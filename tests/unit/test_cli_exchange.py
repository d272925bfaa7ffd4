"""A command that calls an API over TLS: which certificates it accepts, and its message about others."""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from heliograph.cli.developer import listen
from heliograph.cli.terminal.console import UNREACHABLE, Problem
from heliograph.cli.terminal.http import Transient, exchange
from tests.certificates import Authority, verify_strictly


class Answering(BaseHTTPRequestHandler):
    """Answers every GET with an empty body."""

    def do_GET(self) -> None:
        """The name is that of `http.server`."""
        self.send_response(204)
        self.end_headers()

    def log_message(self, *words: object) -> None:
        """Discards the log."""


class Server(HTTPServer):
    """A client that refuses its certificate ends the handshake."""

    def handle_error(self, *about: object) -> None:
        """Discards the error."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def url(authority: Authority) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("127.0.0.1"))
    with Server(("127.0.0.1", 0), Answering) as server:
        # A failed handshake is handled by the request's thread, not by the accepting one.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(params=["", "s"])
def drip(request: pytest.FixtureRequest, authority: Authority) -> Iterator[str]:
    """The URL of a server whose response never ends and comes byte by byte, without and with TLS."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            taken, _ = server.accept()
            if request.param:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(authority.issue("127.0.0.1"))
                taken = context.wrap_socket(taken, server_side=True)
            with taken, contextlib.suppress(OSError):
                for byte in itertools.chain(b"HTTP/1.1 200 OK\r\n\r\n", itertools.repeat(46)):
                    taken.sendall(bytes((byte,)))
                    time.sleep(0.005)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http{request.param}://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def test_a_receiver_that_answers_byte_by_byte_is_given_up(
    drip: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of its steps takes long, so a limit for each of them is never exceeded."""
    monkeypatch.setenv("SSL_CERT_FILE", authority.file)
    monkeypatch.setattr(listen, "PATIENCE", 0.5)
    # Connecting has a limit of its own, which a busy machine would exceed.
    monkeypatch.setattr(listen, "exchange", lambda *given, **more: exchange(*given, **more | {"timeout": 60.0}))
    event = {"id": "e1", "requestId": "r1", "type": "webhook.test", "data": {}}
    assert listen._Receiver(drip, None).post(event) == f"no answer from {drip}: it took longer than 0.5 s"


def test_a_response_that_is_cut_short_is_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            taken, _ = server.accept()
            with taken:
                taken.recv(65_536)
                taken.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"a":')

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(Transient, match="no answer from"):
            exchange("GET", f"http://127.0.0.1:{server.getsockname()[1]}", "/", headers={})
        thread.join()


def test_a_system_authority_that_leaves_out_what_rfc_5280_demands(
    url: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with Python 3.13, which checks this by default."""
    verify_strictly(monkeypatch)
    monkeypatch.setenv("SSL_CERT_FILE", authority.file)
    assert exchange("GET", url, "/", headers={})[0] == 204


def test_an_unknown_authority_is_no_answer_rather_than_a_wrong_request(url: str) -> None:
    with pytest.raises(Problem, match=f"no answer from {url}: its certificate cannot be verified: ") as raised:
        exchange("GET", url, "/", headers={})
    assert raised.value.exit_status == UNREACHABLE
    assert not isinstance(raised.value, Transient), "asking again does not help"
