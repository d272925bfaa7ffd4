"""The server of a process's metrics: the standard library's, with a thread per connection and a bound on both.

The rule nobody may break: connections that are left open, by whoever reaches the port or by a Prometheus that is gone,
take neither the process's files and threads nor the place of the next scrape.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

#: Connections at a time; one more closes the oldest. A scrape takes milliseconds, so only idle ones get that old.
MOST = 16
#: Seconds that a connection may say nothing.
PATIENCE = 10.0


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Serves a registry until `close`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, registry: CollectorRegistry, *, patience: float = PATIENCE) -> None:
        """Raises OSError if it cannot listen there."""
        found: Any = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, *_, address = found[0]
        self._patience = patience
        self._lock = threading.Lock()
        #: Connections, oldest first.
        self._open: dict[Any, None] = {}
        super().__init__(address, _Handler)
        self.set_app(make_wsgi_app(registry))
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, which takes up to half a second."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(self._patience)
        with self._lock:
            self._open[request] = None
            oldest = next(iter(self._open)) if len(self._open) > MOST else None
            self._open.pop(oldest, None)
        if oldest is not None:
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The client was too slow, or went away: nobody has to know."""
