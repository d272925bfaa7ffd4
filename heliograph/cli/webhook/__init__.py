"""`heliograph webhook`: an organization's webhook endpoints, their attempts, resending, and the catcher."""

from __future__ import annotations

from heliograph.cli.terminal.printing import group
from heliograph.cli.webhook import catcher, deliveries, endpoints

app = group(
    "Create, show, change, pause and disable webhook endpoints; see attempts, resend, replay, test, rotate, catch."
)
app.add_typer(endpoints.app)
app.add_typer(deliveries.app)
app.add_typer(catcher.app, name="catcher")
