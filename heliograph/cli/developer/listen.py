"""`heliograph listen`: print events as they happen, and forward them to a program on this machine, without a tunnel.

Events are fetched from the API, so nothing has to be reachable from outside. They are signed with a secret of this
command as webhooks are, so that a receiver verifies them as it will later.

The rule nobody may break: the position moves on only after an event was printed and forwarded.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from heliograph.base.database import clock
from heliograph.base.process import private_files
from heliograph.cli.developer import profiles
from heliograph.cli.developer.client import Client, KeyOption, ProfileOption, UpDir, UrlOption, client
from heliograph.cli.terminal.console import WRONG, Problem, moment, reason
from heliograph.cli.terminal.http import exchange, split
from heliograph.cli.terminal.printing import Json, line, say
from heliograph.webhooks.delivery import signing
from heliograph.webhooks.recording.events import KINDS

#: Seconds between two questions while there is nothing new, and between two signs of life.
POLL, HEARTBEAT = 1.0, 30.0
#: Seconds that a receiver may take, as for webhooks.
PATIENCE = 15.0
COLUMNS = ("at", "type", "id", "subject", "answer")
#: As wide as the longest: what comes later stands under what is printed already.
WIDTHS = {"type": max(map(len, KINDS))}


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
    data_dir: UpDir = None,
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
    begin = moment(since, "--since") if since else None
    known = _position(place) if resume else None
    try:
        if known is not None:
            query |= {"cursor": known.cursor, "dateFrom": known.date_from}
        else:
            query["dateFrom"] = clock.iso(begin or api.now())
        say(f"Listening to {api.base_url} ({'test' if api.is_test else 'live'} mode). Stop with Ctrl-C.")
        if receiver is not None and secret is None:
            say(f"Signing secret of this run: {receiver.secret}")
        for page in _pages(api, query):
            for event in page["items"]:
                answer = receiver.post(event) if receiver is not None else ""
                shown = {"at": event["timestamp"], "type": event["type"], "id": event["id"], "answer": answer}
                whole = {"event": event, "answer": answer or None}
                line(whole if json else shown | {"subject": _subject(event)}, json, COLUMNS, widths=WIDTHS)
            _keep(place, Position(page["nextCursor"], query["dateFrom"]))
    except KeyboardInterrupt:
        say("Stopped. --resume continues here." if "cursor" in query else "Stopped.")


class _Receiver:
    """Whom events are forwarded to."""

    def __init__(self, url: str, secret: str | None) -> None:
        try:
            parts = split(url)
        except Problem as problem:
            raise Problem(f"--forward-to: {problem}", WRONG) from None
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
    heard, count = time.monotonic(), 0
    while True:
        answer = api.keep_asking("/events", query=query, has=("items", "nextCursor", "hasMore"))
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


def _keep(place: Path, position: Position) -> None:
    try:
        private_files.write(place, msgspec.json.encode(position))
    except OSError as error:
        raise Problem(f"{place} cannot be written: {reason(error)}") from None


def _position(place: Path) -> Position | None:
    try:
        return msgspec.json.decode(place.read_bytes(), type=Position)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise Problem(f"{place} cannot be read, start again without --resume: {reason(error)}") from None


def _fingerprint(api: Client, kind: str | None) -> str:
    # A cursor is good for its organization, mode and filter only; the file's name shows none of the key.
    return hashlib.sha256(f"{api.base_url} {api.mark} {kind}".encode()).hexdigest()[:12]


def _subject(event: dict[str, Any]) -> str:
    """What an event is about, in a word."""
    about = next((one for one in event["data"].values() if isinstance(one, dict)), {})
    return " ".join(str(about[name]) for name in ("id", "status") if about.get(name))
