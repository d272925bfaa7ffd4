"""A command that calls an API over TLS: which certificates it accepts, and its message about others."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

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
