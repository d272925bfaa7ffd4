"""`heliograph send`: send one message through the HTTP API, as any client would."""

from __future__ import annotations

import contextlib
import time
from typing import Annotated, Literal
from urllib.parse import quote
from uuid import uuid4

import typer

from heliograph.cli.developer.client import (
    Client,
    KeyOption,
    ProfileOption,
    UpDir,
    UrlOption,
    checked_idempotency_key,
    client,
)
from heliograph.cli.terminal.console import FAILED, Problem
from heliograph.cli.terminal.http import Transient
from heliograph.cli.terminal.printing import Json, say, show
from heliograph.sms.status import STATUSES

#: Seconds between two polls of the message: with --wait, 120 of a key's 3,000 reads per minute.
POLL = 0.5
#: Options by the fields of the API.
OPTIONS = {"to": "--to", "message": "--message", "senderName": "--from", "clientReference": "--reference"}


def command(
    to: Annotated[str, typer.Option(metavar="NUMBER", help="Recipient, with + and country code: +258841234567.")],
    message: Annotated[str, typer.Option(metavar="TEXT", help="Text of the message.")],
    sender: Annotated[
        str | None, typer.Option("--from", metavar="NAME", help="Sender ID. Defaults to the organization's default.")
    ] = None,
    reference: Annotated[str | None, typer.Option(help="Your own reference, returned in responses and events.")] = None,
    traffic_class: Annotated[
        Literal["otp", "transactional", "marketing"] | None,
        typer.Option("--class", help="What the message is. Defaults to transactional."),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            help="Idempotency key, to retry a send that may already have been accepted. Defaults to a new one.",
            callback=checked_idempotency_key,
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the final status; requires the scope sms:read.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Longest time to wait, in seconds.")] = 60.0,
    key: KeyOption = None,
    url: UrlOption = None,
    profile: ProfileOption = None,
    json: Json = False,
    data_dir: UpDir = None,
) -> None:
    """Send one SMS. Uses the API with a key (scope sms:send).

    The idempotency key is printed before anything is sent; repeating the command with the same key never sends the
    message twice. Exit status 1 means that the API refused it or, with --wait, that it was not delivered in time.

    \b
    Examples:
      heliograph send --to +258841234567 --message "Hello"
      HELIOGRAPH_API_KEY=hg_test_... heliograph send --to +258840000001 --message "Will fail" --wait --json
    """
    if not to.startswith("+"):
        raise typer.BadParameter("must begin with + and the country code: +258841234567", param_hint="--to")
    idempotency_key = idempotency_key or str(uuid4())
    api = client(key, url, profile, data_dir)
    if wait:
        # A key that may not read the message is refused before it is created.
        api.ask("GET", "/sms/messages", query={"limit": 1}, has=("items",))
    say(f"idempotency key: {idempotency_key}")
    body = {"to": to, "message": message, "senderName": sender, "clientReference": reference, "class": traffic_class}
    status, headers, answer = api.try_ask(
        "POST",
        "/sms/send",
        body={name: value for name, value in body.items() if value is not None},
        idempotency_key=idempotency_key,
    )
    api.succeeded(status, headers, answer, has=("message", "status", "remainingQuota"), options=OPTIONS)
    id: str = answer["message"]["id"]
    result = {
        "id": id,
        "status": answer["status"],
        "client_reference": answer["message"]["clientReference"],
        "remaining_quota": answer["remainingQuota"],
        "idempotency_key": idempotency_key,
        "replayed": headers.get("x-idempotency-status") == "replayed",
        "request_id": headers.get("x-request-id"),
    }
    try:
        if wait:
            result["status"] = _wait(api, id, timeout)
    finally:  # even if the wait ends in a refusal or by Ctrl-C: the message is accepted
        show(result, json)
    reached = STATUSES.get(str(result["status"]))
    is_final = reached is not None and reached.final
    if wait and not is_final:  # the result was printed: the message is accepted, and may still be delivered
        raise Problem(f"message {id} is still {result['status']} after {timeout:g} s")
    if is_final and result["status"] != "delivered":
        raise typer.Exit(FAILED)


def _wait(api: Client, id: str, timeout: float) -> str:
    """Wait for the message's final status, even while the API is unavailable; returns the last one known at the end of
    the time."""
    deadline, status = time.monotonic() + timeout, "accepted"
    while True:
        with contextlib.suppress(Transient):
            status = api.ask("GET", f"/sms/messages/{quote(id, safe='')}", has=("message",))["message"]["status"]
        if (status in STATUSES and STATUSES[status].final) or time.monotonic() >= deadline:
            return status
        time.sleep(POLL)
