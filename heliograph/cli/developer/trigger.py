"""`heliograph trigger`: makes an event happen in test mode, end to end."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from heliograph.accounts.organizations import DestinationNotAllowed
from heliograph.cli.developer.client import Client, KeyOption, ProfileOption, UpDir, UrlOption, client, refusal
from heliograph.cli.terminal.console import WRONG, Problem
from heliograph.cli.terminal.printing import Json, say, show

#: The last digits of a number choose the outcome of a test message: docs/api.md.
DIGITS = {"message.sent": "0004", "message.delivered": "0000", "message.failed": "0001"}
NUMBER = "+258840000000"
#: Recorded only for endpoints that subscribe to it, since it would occur with every message (`webhooks/recording`).
IF_SUBSCRIBED = "message.sent"
TEST = "webhook.test"
KINDS = (*DIGITS, TEST)


def command(
    event: Annotated[str, typer.Argument(metavar="EVENT", help=f"One of {', '.join(KINDS)}.")],
    to: Annotated[
        str,
        typer.Option(
            metavar="NUMBER",
            help=(
                "Recipient of the message, in a country that the organization may send to. Its last four digits are"
                " replaced by those that choose the outcome."
            ),
        ),
    ] = NUMBER,
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
      heliograph trigger message.failed --to +351912345678
      heliograph trigger webhook.test --profile test -o json
    """
    if event not in KINDS:
        raise Problem(f"{event!r} cannot be triggered; these can: {', '.join(KINDS)}", WRONG)
    if not re.fullmatch(r"\+[0-9]{7,15}", to):
        raise typer.BadParameter("must be a number with + and country code: +258841234567", param_hint="--to")
    api = client(key, url, profile, data_dir)
    if not api.is_test:
        raise Problem("events are triggered with a test key, which begins with hg_test_: nobody gets a message", WRONG)
    made = _tested(api) if event == TEST else [_sent(api, event, to[:-4] + DIGITS[event])]
    show(made, json, ("event", "id", "of"))
    if event == IF_SUBSCRIBED:
        say(f"`heliograph listen` shows it in a moment, but only if a webhook endpoint subscribes to {event}.")
    else:
        say("`heliograph listen` shows it in a moment.")


def _sent(api: Client, event: str, to: str) -> dict[str, Any]:
    status, headers, answer = api.try_ask("POST", "/sms/send", body={"to": to, "message": f"Triggers {event}"})
    match answer:
        case {"error": {"code": DestinationNotAllowed.code}}:
            said = refusal(status, answer).rstrip(".")
            raise Problem(f"{said}. Name a number in a country that it may send to: --to")
    api.succeeded(status, headers, answer, has=("message",))
    return {"event": event, "id": answer["message"]["id"], "of": "message"}


def _tested(api: Client) -> list[dict[str, Any]]:
    active = [one for one in api.ask("GET", "/webhooks", has=("items",))["items"] if one["status"] == "active"]
    if not active:
        raise Problem("there is no active webhook endpoint of this mode: register one with POST /v1/webhooks")
    sent = [api.ask("POST", f"/webhooks/{one['id']}/test", has=("delivery",))["delivery"] for one in active]
    return [{"event": TEST, "id": one["event_id"], "of": f"endpoint {one['webhook_endpoint_id']}"} for one in sent]
