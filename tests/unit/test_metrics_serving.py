"""The server of metrics bounds what those who reach its port can take."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from prometheus_client import CollectorRegistry, Counter

from heliograph.metrics.serving import MOST, MetricsServer


@contextmanager
def served(patience: float) -> Iterator[MetricsServer]:
    registry = CollectorRegistry()
    Counter("heliograph_tests", "Counts nothing.", registry=registry)
    server = MetricsServer("127.0.0.1", 0, registry, patience=patience)
    try:
        yield server
    finally:
        server.close()


def scraped(server: MetricsServer) -> bytes:
    content: bytes = urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=120).read()
    return content


def opened(stack: ExitStack, server: MetricsServer, *, sent: bytes = b"") -> socket.socket:
    one = stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port), timeout=120))
    one.sendall(sent)
    return one


def test_connections_that_are_left_open_are_closed_for_new_ones() -> None:
    """Each kept a thread and a file of the process for good: a thousand left none for its suppliers."""
    with served(600) as server, ExitStack() as stack:
        # Some say nothing, others never end their request.
        left = [opened(stack, server, sent=b"GET /metrics HTTP/1.1\r\n" * (n % 2)) for n in range(3 * MOST)]
        assert all(one.recv(1) == b"" for one in left[: 2 * MOST])
        assert b"heliograph_tests_total" in scraped(server)
        left[-1].sendall(b"\r\n")
        assert left[-1].recv(4) == b"HTTP"


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nHost: "])
def test_a_connection_that_says_nothing_more_is_closed(sent: bytes) -> None:
    with served(0.05) as server, ExitStack() as stack:
        assert opened(stack, server, sent=sent).recv(1) == b""


@pytest.mark.parametrize("sent", [b"\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET /" + b"x" * 70_000])
def test_what_is_no_request_costs_nobody_the_next_scrape(sent: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with served(600) as server, ExitStack() as stack:
        opened(stack, server, sent=sent).close()
        assert b"heliograph_tests_total" in scraped(server)
    assert capfd.readouterr().err == ""
