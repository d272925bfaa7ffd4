"""`heliograph trigger`: makes an event happen in test mode, end to end."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from heliograph.cli.developer.client import Client, KeyOption, ProfileOption, UpDir, UrlOption, client
from heliograph.cli.terminal.console import WRONG, Problem
from heliograph.cli.terminal.printing import Json, say, show

#: Outcomes of test messages by the last digits of the number: docs/api.md.
NUMBERS = {
    "message.sent": "+258840000004",
    "message.delivered": "+258840000000",
    "message.failed": "+258840000001",
}
#: Recorded only for endpoints that subscribe to it, since it would occur with every message (`webhooks/recording`).
IF_SUBSCRIBED = "message.sent"
TEST = "webhook.test"
KINDS = (*NUMBERS, TEST)


def command(
    event: Annotated[str, typer.Argument(metavar="EVENT", help=f"One of {', '.join(KINDS)}.")],
    key: KeyOption = None,
    url: UrlOption = None,
    profile: ProfileOption = None,
    json: Json = False,
    data_dir: UpDir = None,
) -> None:
    """Make an event happen in test mode: a message to a test number, or a test event for each active endpoint. Uses the
    API with a test key; nothing is sent to anybody and no quota is used. A message.sent is recorded only if a webhook
    endpoint subscribes to it.

    \b
    Examples:
      heliograph trigger message.delivered
      heliograph trigger webhook.test --profile test -o json
    """
    if event not in KINDS:
        raise Problem(f"{event!r} cannot be triggered; these can: {', '.join(KINDS)}", WRONG)
    api = client(key, url, profile, data_dir)
    if not api.is_test:
        raise Problem("events are triggered with a test key, which begins with hg_test_: nobody gets a message", WRONG)
    made = _tested(api) if event == TEST else [_sent(api, event)]
    show(made, json, ("event", "id", "of"))
    if event == IF_SUBSCRIBED:
        say(f"`heliograph listen` shows it in a moment, but only if a webhook endpoint subscribes to {event}.")
    else:
        say("`heliograph listen` shows it in a moment.")


def _sent(api: Client, event: str) -> dict[str, Any]:
    answer = api.ask("POST", "/sms/send", body={"to": NUMBERS[event], "message": f"Triggers {event}"}, has=("message",))
    return {"event": event, "id": answer["message"]["id"], "of": "message"}


def _tested(api: Client) -> list[dict[str, Any]]:
    active = [one for one in api.ask("GET", "/webhooks", has=("items",))["items"] if one["status"] == "active"]
    if not active:
        raise Problem("there is no active webhook endpoint of this mode: register one with POST /v1/webhooks")
    sent = [api.ask("POST", f"/webhooks/{one['id']}/test", has=("delivery",))["delivery"] for one in active]
    return [{"event": TEST, "id": one["event_id"], "of": f"endpoint {one['webhook_endpoint_id']}"} for one in sent]
