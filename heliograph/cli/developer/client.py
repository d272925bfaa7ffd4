"""A client of the API with a key, for commands: finds the installation and the key, and reports refusals."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any
from urllib.parse import urlencode
from uuid import uuid4

import typer

from heliograph.base.retry import Backoff
from heliograph.cli.developer import profiles
from heliograph.cli.terminal.console import WRONG, Problem, demand_directory, explained
from heliograph.cli.terminal.http import NOT_PRINTABLE, Transient, address, ask, foreign, is_final, retry_after
from heliograph.cli.terminal.printing import say

#: Pauses while the API is unavailable, and the longest pause that it may request, in seconds.
AWAY, ASKED_MOST = Backoff(1.0, longest=30.0), 60.0

#: Types of fields that commands read more of.
TYPES: Mapping[str, type] = {"items": list, "hasMore": bool, "message": dict, "delivery": dict, "request": dict}


def _unless_a_profile_is_named(ctx: typer.Context, key: str | None) -> str | None:
    """Ignores HELIOGRAPH_API_KEY if --profile is given: it may belong to another installation or mode."""
    came = {name: getattr(ctx.get_parameter_source(name), "name", "") for name in ("key", "profile")}
    return None if came == {"key": "ENVIRONMENT", "profile": "COMMANDLINE"} else key


KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        envvar=profiles.KEY_VARIABLE,
        metavar="SECRET",
        show_default=False,
        help="API key. Defaults to that of the profile; --profile wins over the variable.",
        callback=_unless_a_profile_is_named,
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        show_default=False,
        help=(
            "URL of the API. Defaults to the profile's; without a profile, and with a key but no --profile, to that "
            "of `heliograph up`, or else http://127.0.0.1:8080."
        ),
    ),
]


def checked_idempotency_key(given: str | None) -> str | None:
    """Callback of `--idempotency-key`."""
    if given is not None and (not given or NOT_PRINTABLE.search(given)):
        raise typer.BadParameter("must be ASCII without spaces, and not empty")
    return given


#: `--data-dir` of commands that use the API.
UpDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        show_default=False,
        help=(
            "Data directory of `heliograph up`, whose URL to use if neither --url nor a profile names one. Defaults "
            "to the default data directory."
        ),
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        envvar=profiles.PROFILE_VARIABLE,
        show_default=False,
        help="Profile of `heliograph login`. Defaults to the current one.",
    ),
]


class Client:
    """A client for one installation with one key."""

    def __init__(self, base_url: str, key: str) -> None:
        self.base_url, self._key = base_url, key

    @property
    def is_test(self) -> bool:
        """True if the key is a test key."""
        return self._key.startswith("hg_test_")

    @property
    def mark(self) -> str:
        """Identifies the key, for use in a file's name."""
        return hashlib.sha256(self._key.encode()).hexdigest()

    def try_ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        idempotency_key: str | None = None,
    ) -> tuple[int, Mapping[str, str], Any]:
        """Status, headers and body of any response. `query`: None values are omitted. `idempotency_key`: a POST without
        one gets a new one. Raises Transient if there is no response."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        headers = {"authorization": f"Bearer {self._key}"}
        if method == "POST" or idempotency_key is not None:
            headers["idempotency-key"] = idempotency_key or str(uuid4())
        where = f"{path}?{urlencode(given)}" if given else path
        return ask(method, self.base_url, where, headers=headers, body=body)

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        idempotency_key: str | None = None,
        has: Sequence[str] = (),
    ) -> Any:
        """The body of a successful response. Raises Problem for a refusal, and the same as `succeeded`."""
        status, headers, answer = self.try_ask(method, path, query=query, body=body, idempotency_key=idempotency_key)
        self.succeeded(status, headers, answer, has=has)
        return answer

    def succeeded(
        self,
        status: int,
        headers: Mapping[str, str],
        answer: Any,
        *,
        has: Sequence[str] = (),
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Raise Problem unless the response is a success with the fields `has`; Transient if a retry may help.
        `options`: those of the command, by the fields that a refusal may name."""
        if not 200 <= status < 300:
            text = re.sub("`([A-Za-z]+)`", lambda named: options.get(named[1], named[0]), refusal(status, answer))
            raise Problem(text) if is_final(status) else Transient(text, after=retry_after(headers))
        if has and not _fits(answer, has):
            raise Transient(foreign(self.base_url))

    def keep_asking(self, path: str, *, query: Mapping[str, Any], has: Sequence[str]) -> Any:
        """Like `ask` with GET, but retries, with growing pauses, for as long as that may help."""
        failures = 0
        while True:
            try:
                answer = self.ask("GET", path, query=query, has=has)
            except Transient as lost:
                if not failures:
                    say(f"{lost}; trying again")
                time.sleep(max(AWAY.pause(failures), min(lost.after or 0.0, ASKED_MOST)))
                failures += 1
            else:
                if failures:
                    say("Connected again; nothing was missed.")
                return answer

    def now(self) -> datetime:
        """The installation's current time. Retries like `keep_asking`."""
        try:
            return datetime.fromisoformat(self.keep_asking("/health", query={}, has=("time",))["time"]).astimezone(UTC)
        except (TypeError, ValueError):
            raise Problem(foreign(self.base_url)) from None


def _fits(answer: Any, has: Sequence[str]) -> bool:
    """Whether a response has these fields, as objects, flags and lists of objects where ours are."""
    if not isinstance(answer, dict) or not answer.keys() >= set(has):
        return False
    items = answer["items"] if "items" in has else []
    return all(isinstance(answer[name], TYPES.get(name, object)) for name in has) and all(
        isinstance(one, dict) and "id" in one for one in items
    )


def client(key: str | None, url: str | None, profile: str | None, data_dir: Path | None = None) -> Client:
    """A client for the given installation and key, or those of a profile. Raises Problem, SettingsError."""
    demand_directory(data_dir)
    known = profiles.get(profile) if profile is not None or key is None or url is None else None
    if key is None and known is None:
        raise Problem(_no_key(), WRONG)
    # A key given alone is for the profile's installation only if a profile was named.
    if url is None and known is not None and (profile is not None or key is None):
        url = known.url
    return Client(address(url, data_dir), usable_key(key if key is not None else known.key if known else ""))


def usable_key(text: str) -> str:
    """The key without surrounding whitespace. Raises Problem, without quoting the key, if it contains characters that
    no key has."""
    key = text.strip()
    if not key or NOT_PRINTABLE.search(key):
        what = "has characters that no key has" if key else "is empty"
        raise Problem(f"the API key {what}: check --key, HELIOGRAPH_API_KEY or the profile", WRONG)
    return key


def _no_key() -> str:
    others = ", ".join(sorted(profiles.read().profiles))
    if others:
        return f"there is no current profile: choose one with `heliograph profile use NAME` (available: {others})"
    return "no API key: run `heliograph login`, set HELIOGRAPH_API_KEY, or give one with --key"


def refusal(status: int, answer: Any) -> str:
    """The message of an unsuccessful response."""
    try:
        error = answer["error"]
        said = explained(error["message"], error.get("details") or {})
        return f"the API refused it: {status} {error['code']}: {said}"
    except (TypeError, KeyError, AttributeError, ValueError):
        return f"the API answered {status}"
