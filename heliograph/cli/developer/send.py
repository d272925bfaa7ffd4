"""`heliograph send`: send one message through the HTTP API, as any client would."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Literal
from uuid import UUID, uuid4

import typer

from heliograph.base.embedded.install import PostgresError
from heliograph.base.process.settings import SettingsError
from heliograph.cli.developer.client import refusal
from heliograph.cli.terminal.console import FAILED, DataDir, Problem, connection, settings_of
from heliograph.cli.terminal.http import address, ask
from heliograph.cli.terminal.printing import Json, say, show
from heliograph.sms import timeline
from heliograph.sms.status import STATUSES

#: Seconds between two looks at the message.
POLL = 0.1


def command(
    to: Annotated[str, typer.Option(metavar="NUMBER", help="Recipient, with + and country code: +258841234567.")],
    message: Annotated[str, typer.Option(metavar="TEXT", help="Text of the message.")],
    key: Annotated[
        str,
        typer.Option(
            envvar="HELIOGRAPH_API_KEY", metavar="SECRET", show_default=False, help="API key with the scope sms:send."
        ),
    ],
    url: Annotated[
        str | None,
        typer.Option(help="URL of the API. Defaults to that of `heliograph up`, or else http://127.0.0.1:8080."),
    ] = None,
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
            help="Idempotency key, to retry a send that may already have been accepted. Defaults to a new one."
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the final status; requires access to the database.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Longest time to wait, in seconds.")] = 60.0,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Send one SMS through the HTTP API.

    The idempotency key is printed before anything is sent; repeating the command with the same key never sends the
    message twice. Exit status 1 means that the API refused it or, with --wait, that it was not delivered.

    \b
    Examples:
      heliograph send --key hg_live_... --to +258841234567 --message "Hello"
      HELIOGRAPH_API_KEY=hg_test_... heliograph send --to +258840000001 --message "Will fail" --wait --json
    """
    if not to.startswith("+"):
        raise typer.BadParameter("must begin with + and the country code: +258841234567", param_hint="--to")
    idempotency_key = idempotency_key or str(uuid4())
    say(f"idempotency key: {idempotency_key}")
    body = {"to": to, "message": message, "senderName": sender, "clientReference": reference, "class": traffic_class}
    status, headers, answer = ask(
        "POST",
        address(url, data_dir),
        "/sms/send",
        headers={"authorization": f"Bearer {key}", "idempotency-key": idempotency_key},
        body={name: value for name, value in body.items() if value is not None},
    )
    if not 200 <= status < 300:
        raise Problem(refusal(status, answer))
    id = UUID(answer["message"]["id"])
    result = {
        "id": str(id),
        "status": answer["status"],
        "client_reference": answer["message"]["clientReference"],
        "remaining_quota": answer["remainingQuota"],
        "idempotency_key": idempotency_key,
        "replayed": headers.get("x-idempotency-status") == "replayed",
        "request_id": headers.get("x-request-id"),
    }
    if wait:
        result["status"] = _wait(id, timeout, data_dir) or result["status"]
    show(result, json)
    reached = STATUSES.get(str(result["status"]))
    if reached is not None and reached.final and result["status"] != "delivered":
        raise typer.Exit(FAILED)


def _wait(id: UUID, timeout: float, data_dir: Path | None) -> str | None:
    """Wait for the message's final status. Returns None if there is no database; raises Problem on timeout."""
    try:
        settings = settings_of(data_dir)
    except (SettingsError, PostgresError) as error:
        say(f"not waiting for the final status: {error}")
        return None

    async def watch() -> str:
        status = "accepted"
        async with connection(settings.database_url) as conn:
            try:
                async with asyncio.timeout(timeout):
                    while True:
                        status = await timeline.status_of(conn, id=id)
                        if STATUSES[status].final:
                            return status
                        await asyncio.sleep(POLL)
            except TimeoutError:
                raise Problem(f"message {id} is still {status} after {timeout:g} s") from None

    return asyncio.run(watch())
