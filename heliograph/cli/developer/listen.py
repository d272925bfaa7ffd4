"""`heliograph listen`: print events as they happen, and forward them to a program on this machine, without a tunnel.

Events are fetched from the API, so nothing has to be reachable from outside. They are signed with a secret of this
command as webhooks are, so that a receiver verifies them as it will later.

The rule nobody may break: the position moves on only after an event was printed and forwarded.
"""

from __future__ import annotations

import hashlib
import time
import urllib.parse
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from heliograph.base.database import clock
from heliograph.base.process import private_files
from heliograph.cli.developer import profiles
from heliograph.cli.developer.client import Client, KeyOption, ProfileOption, UrlOption, client, refusal
from heliograph.cli.terminal.console import UNREACHABLE, WRONG, DataDir, Problem, moment
from heliograph.cli.terminal.http import exchange
from heliograph.cli.terminal.printing import Json, line, say
from heliograph.webhooks.delivery import signing

#: Seconds between two questions while there is nothing new, after a failure, and between two signs of life.
POLL, AFTER_FAILURE, HEARTBEAT = 1.0, 2.0, 30.0
#: Seconds that a receiver may take, as for webhooks.
PATIENCE = 15.0
COLUMNS = ("at", "type", "id", "subject", "answer")


class Position(msgspec.Struct, frozen=True):
    """Where a listener was: a cursor, and the filter that it belongs to."""

    cursor: str
    date_from: str


def command(
    forward_to: Annotated[
        str | None, typer.Option(metavar="URL", show_default=False, help="Also post each event to this URL, signed.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option(metavar="EVENT", show_default=False, help="Only events of this kind.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", show_default="now", help="Begin with events from this time on.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue where this command last ended.")] = False,
    secret: Annotated[
        str | None,
        typer.Option(
            envvar="HELIOGRAPH_SIGNING_SECRET", metavar="SECRET", show_default=False, help="Sign with this secret."
        ),
    ] = None,
    key: KeyOption = None,
    url: UrlOption = None,
    profile: ProfileOption = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Print events as they happen, and forward them to a program on this machine. Uses the API with a key (scope
    webhooks:read); no tunnel and no webhook endpoint are needed.

    It goes on until interrupted, also when the connection is lost meanwhile. Events appear about three seconds after
    they happened. Each is forwarded once, whatever the receiver answers; after an interruption in the middle of some,
    --resume repeats those.

    \b
    Examples:
      heliograph listen
      heliograph listen --forward-to http://127.0.0.1:3000/webhooks --kind message.delivered
      heliograph listen --resume -o json
    """
    api = client(key, url, profile, data_dir)
    receiver = _Receiver(forward_to, secret) if forward_to is not None else None
    place = profiles.folder() / f"listen-{_fingerprint(api, kind)}.json"
    query: dict[str, Any] = {"limit": 100, "kind": kind}
    known = _position(place) if resume else None
    if known is not None:
        query |= {"cursor": known.cursor, "dateFrom": known.date_from}
    else:
        query["dateFrom"] = clock.iso(moment(since, "--since") if since else _now(api))
    say(f"Listening to {api.base_url} ({'test' if api.is_test else 'live'} mode). Stop with Ctrl-C.")
    if receiver is not None and secret is None:
        say(f"Signing secret of this run: {receiver.secret}")
    try:
        for page in _pages(api, query):
            for event in page["items"]:
                answer = receiver.post(event) if receiver is not None else ""
                shown = {"at": event["timestamp"], "type": event["type"], "id": event["id"], "answer": answer}
                whole = {"event": event, "answer": answer or None}
                line(whole if json else shown | {"subject": _subject(event)}, json, COLUMNS)
            private_files.write(place, msgspec.json.encode(Position(page["nextCursor"], query["dateFrom"])))
    except KeyboardInterrupt:
        say("Stopped. --resume continues here.")


class _Receiver:
    """Whom events are forwarded to."""

    def __init__(self, url: str, secret: str | None) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Problem(f"--forward-to {url!r} is not an http:// or https:// URL", WRONG)
        self._base = f"{parts.scheme}://{parts.netloc}"
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self.secret = secret or signing.new_secret()
        try:
            self._signer = signing.Signer([self.secret])
        except ValueError as error:
            raise Problem(f"--secret is none of ours: {error}", WRONG) from None

    def post(self, event: dict[str, Any]) -> str:
        """Forward one; what came of it."""
        body = msgspec.json.encode(event)
        headers = self._signer.headers(event_id=event["id"], request_id=event["requestId"], body=body, at=clock.now())
        headers["content-type"] = "application/json"
        began = time.monotonic()
        try:
            status, _, _ = exchange("POST", self._base, self._path, headers=headers, data=body, timeout=PATIENCE)
        except Problem as problem:
            return str(problem)
        return f"{status} in {(time.monotonic() - began) * 1000:.0f} ms"


def _pages(api: Client, query: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Pages of the feed for ever; each moves `query` on once the caller is done with it."""
    heard, is_lost, count = time.monotonic(), False, 0
    while True:
        try:
            status, headers, answer = api.try_ask("GET", "/events", query=query)
        except Problem as problem:
            status, headers, answer, why = 0, {}, None, str(problem)
            if problem.exit_status != UNREACHABLE:
                raise
        else:
            why = refusal(status, answer)
        if status != 200:
            if 400 <= status < 500 and status not in (408, 429):
                raise Problem(why)
            if not is_lost:
                say(f"{why}; trying again")
            is_lost = True
            time.sleep(float(headers.get("retry-after", AFTER_FAILURE)))
            continue
        if is_lost:
            say("Listening again; nothing was missed.")
            is_lost = False
        yield answer
        count += len(answer["items"])
        query["cursor"] = answer["nextCursor"]
        if answer["items"]:
            heard = time.monotonic()
        elif time.monotonic() - heard >= HEARTBEAT:
            heard = time.monotonic()
            say(f"Still listening, {count} events so far.")
        if not answer["hasMore"]:
            time.sleep(POLL)


def _now(api: Client) -> datetime:
    """The installation's time."""
    at = datetime.fromisoformat(api.ask("GET", "/health")["time"])
    return at.astimezone(UTC)


def _position(place: Path) -> Position | None:
    try:
        return msgspec.json.decode(place.read_bytes(), type=Position)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise Problem(f"{place} cannot be read, start again without --resume: {error}") from None


def _fingerprint(api: Client, kind: str | None) -> str:
    # A cursor is good for its organization, mode and filter only; the file's name shows none of the key.
    return hashlib.sha256(f"{api.base_url} {api.mark} {kind}".encode()).hexdigest()[:12]


def _subject(event: dict[str, Any]) -> str:
    """What an event is about, in a word."""
    about = next((one for one in event["data"].values() if isinstance(one, dict)), {})
    return " ".join(str(about[name]) for name in ("id", "status") if about.get(name))
