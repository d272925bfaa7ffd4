"""An HTTP client for commands that use Heliograph's API as any client would."""

from __future__ import annotations

import http.client
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from heliograph.base.embedded.server import default_data_dir
from heliograph.cli.terminal.console import UNREACHABLE, WRONG, Problem
from heliograph.demo import read_credentials

DEFAULT_URL = "http://127.0.0.1:8080"


def address(url: str | None, data_dir: Path | None) -> str:
    """The API's URL: the one given, otherwise the one that `heliograph up` last served from the data
    directory (or the default directory), otherwise port 8080 on this machine."""
    if url is not None:
        return url
    known = read_credentials((data_dir or default_data_dir()) / "credentials.json")
    return known.base_url if known else DEFAULT_URL


def ask(
    method: str,
    base_url: str,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: Any = None,
    timeout: float = 30.0,
) -> tuple[int, Mapping[str, str], Any]:
    """Send one request below `/v1`; returns status, headers in lower case and decoded body. Raises Problem.

    `base_url` is the address with or without `/v1`. `timeout` in seconds, for each step of the exchange.
    """
    sent = {"accept": "application/json"} | dict(headers or {})
    data = None
    if body is not None:
        data, sent["content-type"] = msgspec.json.encode(body), "application/json"
    status, answered, raw = exchange(method, base_url, f"/v1{path}", headers=sent, data=data, timeout=timeout)
    try:
        decoded = msgspec.json.decode(raw) if raw else None
    except msgspec.DecodeError:
        raise Problem(f"{base_url} answered {status} with something other than JSON") from None
    return status, answered, decoded


def exchange(
    method: str,
    base_url: str,
    path: str,
    *,
    headers: Mapping[str, str],
    data: bytes | None = None,
    timeout: float = 30.0,
) -> tuple[int, Mapping[str, str], bytes]:
    """Like `ask`, with any path and a body in bytes."""
    parts = urllib.parse.urlsplit(base_url.rstrip("/").removesuffix("/v1"))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Problem(f"{base_url!r} is not an http:// or https:// URL", WRONG)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        client = kind(parts.hostname, parts.port, timeout=timeout)
    except ValueError as error:
        raise Problem(f"{base_url!r} is not a valid URL: {error}", WRONG) from None
    try:
        client.request(method, f"{parts.path}{path}", data, {**headers, "connection": "close"})
        answer = client.getresponse()
        raw = answer.read()
    except ValueError as error:
        raise Problem(f"the request cannot be encoded: {error}", WRONG) from None
    except (OSError, http.client.HTTPException) as error:
        where = f"{parts.scheme}://{parts.netloc}"
        raise Problem(f"no answer from {where}: {error or type(error).__name__}", UNREACHABLE) from None
    finally:
        client.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, raw
