"""The command line, one file a noun. It holds no rule: each command calls the one that the API calls too."""

from __future__ import annotations

from heliograph.cli import (
    api,
    doctor,
    key,
    message,
    migrate,
    org,
    quota,
    send,
    sender,
    simulate,
    supplier,
    up,
    webhook,
    worker,
)
from heliograph.cli.console import group, run

app = group("Heliograph, the messaging platform that organizations run themselves.")
app.command("up")(up.command)
app.command("api")(api.command)
app.command("worker")(worker.command)
app.command("migrate")(migrate.command)
app.add_typer(org.app, name="org")
app.add_typer(key.app, name="key")
app.add_typer(sender.app, name="sender")
app.add_typer(supplier.app, name="supplier")
app.add_typer(quota.app, name="quota")
app.add_typer(message.app, name="message")
app.add_typer(webhook.app, name="webhook")
app.command("send")(send.command)
app.command("doctor")(doctor.command)
app.add_typer(simulate.app, name="simulate")


def main() -> None:
    """Run the command that `sys.argv` names; ends the process."""
    run(app)
