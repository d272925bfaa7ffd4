"""An HTTP client for commands that use Heliograph's API like any client."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from heliograph.base.embedded.server import default_data_dir
from heliograph.base.network.failures import reason
from heliograph.base.network.tls import client_context
from heliograph.base.process.settings import Settings
from heliograph.cli.terminal.console import FAILED, UNREACHABLE, WRONG, Problem
from heliograph.demo.credentials import Credentials, read_credentials

DEFAULT_URL = "http://127.0.0.1:8080"
#: How much of a response is read, in bytes: more than the API's longest.
LONGEST = 67_108_864
#: Characters that URLs and headers must not contain: spaces, control characters and non-ASCII ones.
NOT_PRINTABLE = re.compile(r"[^!-~]")


class Transient(Problem):
    """No response, or a temporary failure: a retry may help."""

    def __init__(self, text: str, exit_status: int = FAILED, *, after: float | None = None) -> None:
        """`after`: the seconds that the response asks to wait."""
        super().__init__(text, exit_status)
        self.after = after


def address(url: str | None, data_dir: Path | None) -> str:
    """The API's URL: the one given, otherwise the one last served by `heliograph up` from the data directory (or the
    default directory), otherwise port 8080 on this machine."""
    if url is not None:
        return url
    known = _last_served(data_dir)
    return known.base_url if known else DEFAULT_URL


def served(settings: Settings, data_dir: Path | None) -> str:
    """Where `heliograph up` last served the database of these settings, otherwise port 8080 on this machine."""
    known = _last_served(data_dir)
    return known.base_url if known and known.database_url == settings.database_url else DEFAULT_URL


def _last_served(data_dir: Path | None) -> Credentials | None:
    return read_credentials((data_dir or default_data_dir()) / "credentials.json")


def ask(
    method: str,
    base_url: str,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: Any = None,
    timeout: float = 30.0,
) -> tuple[int, Mapping[str, str], Any]:
    """Send one request below `/v1`; returns status, headers in lower case and decoded body. Raises Problem, and
    Transient if a retry may help.

    `base_url` is the address with or without `/v1`. `timeout` in seconds, for each step of the exchange.
    """
    sent = {"accept": "application/json"} | dict(headers or {})
    data = None
    if body is not None:
        data, sent["content-type"] = msgspec.json.encode(body), "application/json"
    status, answered, raw = exchange(method, base_url, f"/v1{path}", headers=sent, data=data, timeout=timeout)
    if 300 <= status < 400 and (target := answered.get("location")):
        # Such as from http:// to https://. It is not followed: the key would go to whatever address it names.
        raise Problem(f"{base_url} redirects to {target}: give the URL that it leads to")
    try:
        decoded = msgspec.json.decode(raw) if raw else None
    except (msgspec.DecodeError, UnicodeError):
        text = f"{foreign(base_url)}: {status} with something other than JSON"
        if is_final(status) and not 200 <= status < 300:
            raise Problem(text) from None
        # A proxy's response while the server behind it is down.
        code = UNREACHABLE if status >= 500 else FAILED
        raise Transient(text, code, after=retry_after(answered)) from None
    return status, answered, decoded


def foreign(base_url: str) -> str:
    """The message about a server that is not Heliograph."""
    return f"{base_url} does not respond like a Heliograph server"


def is_final(status: int) -> bool:
    """True if repeating the request would give the same status."""
    return status < 500 and status not in (408, 429)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds in `Retry-After`; None without it, or if it is a date, which depends on another clock."""
    given = headers.get("retry-after", "")
    return float(given) if re.fullmatch(r"[0-9]{1,9}", given) else None


def split(url: str) -> urllib.parse.SplitResult:
    """The parts of an http:// or https:// URL. Raises Problem if it is not one, or has characters that must be
    encoded."""
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port  # raises ValueError for an invalid port
    except ValueError as error:
        raise Problem(f"{url!r} is not a valid URL: {error}", WRONG) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Problem(f"{url!r} is not an http:// or https:// URL", WRONG)
    # A host name may be international: it has its own encoding.
    if NOT_PRINTABLE.search("".join(one for one in url if one.isascii())):
        raise Problem(f"{url!r} is not a valid URL: it has a space or a control character", WRONG)
    _demand_encoded(parts.path + parts.query)
    return parts


def _demand_encoded(path: str) -> None:
    if NOT_PRINTABLE.search(path):
        raise Problem(
            f"the path {path!r} is not percent-encoded: write {urllib.parse.quote(path, safe='/?=&%')!r}", WRONG
        )


def exchange(
    method: str,
    base_url: str,
    path: str,
    *,
    headers: Mapping[str, str],
    data: bytes | None = None,
    timeout: float = 30.0,
    whole: float | None = None,
) -> tuple[int, Mapping[str, str], bytes]:
    """Like `ask`, with any path and a body in bytes. `whole`: time limit in seconds for everything after connecting."""
    parts = split(base_url.rstrip("/").removesuffix("/v1"))
    _demand_encoded(path)
    where = f"{parts.scheme}://{parts.netloc}"
    host = parts.hostname or ""
    try:
        client = (
            http.client.HTTPSConnection(host, parts.port, timeout=timeout, context=client_context())
            if parts.scheme == "https"
            else http.client.HTTPConnection(host, parts.port, timeout=timeout)
        )
    except (ValueError, http.client.InvalidURL) as error:
        raise Problem(f"{base_url!r} is not a valid URL: {error}", WRONG) from None
    try:
        client.connect()
        with contextlib.nullcontext() if whole is None else _within(whole, client.sock):
            client.request(method, f"{parts.path}{path}", data, {**headers, "connection": "close"})
            answer = client.getresponse()
            raw = answer.read(LONGEST)
        if answer.length and len(raw) < LONGEST:
            raise http.client.IncompleteRead(raw, answer.length)
    # First: that a certificate cannot be verified is a ValueError, too. Asking again does not help.
    except ssl.SSLCertVerificationError as error:
        raise Problem(f"no answer from {where}: {reason(error)}", UNREACHABLE) from None
    except (OSError, http.client.HTTPException) as error:
        raise Transient(f"no answer from {where}: {reason(error)}", UNREACHABLE) from None
    except ValueError:
        # The error's text may contain a header, and thereby the key.
        raise Problem(f"the request to {where} cannot be encoded", WRONG) from None
    finally:
        client.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, raw


@contextlib.contextmanager
def _within(seconds: float, sock: socket.socket) -> Iterator[None]:
    """Cut the connection after this time. A response that comes byte by byte exceeds no limit for a single step, and an
    endless one none at all. Raises TimeoutError."""
    late = threading.Event()

    def cut() -> None:
        late.set()
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # below TLS, which another thread must not end

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if not late.is_set():
            raise
    finally:
        timer.cancel()
    if late.is_set():
        raise TimeoutError(f"it took longer than {seconds:g} s")
