"""The API with a key, for commands: which installation, which key, and what a refusal says."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode
from uuid import uuid4

import typer

from heliograph.cli.developer import profiles
from heliograph.cli.terminal.console import WRONG, Problem
from heliograph.cli.terminal.http import address, ask

KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        envvar="HELIOGRAPH_API_KEY",
        metavar="SECRET",
        show_default=False,
        help="API key. Defaults to that of the profile.",
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option("--url", show_default=False, help="URL of the API. Defaults to the profile's, or that of `up`."),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        envvar="HELIOGRAPH_PROFILE",
        show_default=False,
        help="Profile of `heliograph login`. Defaults to the current one.",
    ),
]


class Client:
    """One installation, asked with one key."""

    def __init__(self, base_url: str, key: str) -> None:
        self.base_url, self._key = base_url, key

    @property
    def is_test(self) -> bool:
        """Whether the key is a test key."""
        return self._key.startswith("hg_test_")

    @property
    def mark(self) -> str:
        """Which key it is, for the name of a file."""
        return hashlib.sha256(self._key.encode()).hexdigest()

    def try_ask(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None
    ) -> tuple[int, Mapping[str, str], Any]:
        """Status, headers and body, whatever they are. `query`: without what is None. Raises Problem without answer."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        headers = {"authorization": f"Bearer {self._key}"}
        if method == "POST":
            headers["idempotency-key"] = str(uuid4())
        where = f"{path}?{urlencode(given)}" if given else path
        return ask(method, self.base_url, where, headers=headers, body=body)

    def ask(self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None) -> Any:
        """The body of a success. Raises Problem for what the API refuses."""
        status, _, answer = self.try_ask(method, path, query=query, body=body)
        if not 200 <= status < 300:
            raise Problem(refusal(status, answer))
        return answer


def client(key: str | None, url: str | None, profile: str | None, data_dir: Path | None = None) -> Client:
    """The installation and the key that were named, or those of a profile. Raises Problem."""
    known = profiles.get(profile) if profile or key is None or url is None else None
    if key is None and known is None:
        raise Problem("no API key: run `heliograph login`, set HELIOGRAPH_API_KEY, or give one with --key", WRONG)
    # A key that was given by itself is for the profile's installation only if a profile was named.
    base_url = url or (known.url if known and (profile or key is None) else None) or address(None, data_dir)
    return Client(base_url, key or (known.key if known else ""))


def refusal(status: int, answer: Any) -> str:
    """The message of an answer that is not a success."""
    try:
        error = answer["error"]
        return f"the API refused it: {status} {error['code']}: {error['message']}"
    except (TypeError, KeyError):
        return f"the API answered {status}"
