"""`heliograph mail`: test the server that sends mail."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from heliograph.base.ids import uuid7
from heliograph.base.network import smtp
from heliograph.base.network.smtp import MailNotSent
from heliograph.base.process.settings import from_environment
from heliograph.cli.terminal.console import FAILED, Problem
from heliograph.cli.terminal.printing import Json, group, say, show
from heliograph.mail.work import sender_of
from heliograph.people.mailing import texts

app = group("Test the SMTP server that sends invitations and password resets.")


@app.command("test")
def send_test(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="E-mail address to send a test mail to.")],
    json: Json = False,
) -> None:
    """Send a test mail now, and print the server's response. Exits with status 1 if the mail was not accepted.

    \b
    Example:
      heliograph mail test ana@example.com
    """
    settings = from_environment()
    sender = sender_of(settings)
    if sender is None:
        raise Problem(
            "HELIOGRAPH_SMTP_URL is not set, so no mails are sent: invitations are links to hand on, and"
            " `heliograph user link` helps people who forgot their password"
        )
    server = smtp.parse(settings.smtp_url)
    tried = {"to": address.strip(), "server": f"{server.host}:{server.port}", "sent": False}
    try:
        said = asyncio.run(sender.send(texts.test("en", to=address.strip()), id=str(uuid7())))
    except MailNotSent as error:
        show(tried | {"reason": error.reason, "said": error.said}, json)
        say(f"heliograph: {smtp.REASONS[error.reason]}.")
        raise typer.Exit(FAILED) from None
    finally:
        sender.close()
    show(tried | {"sent": True, "said": said}, json)
    say("The server accepted the mail. Check the mailbox to see whether it arrived.")


# With a single command, the group itself would become that command.
app.callback()(lambda: None)
