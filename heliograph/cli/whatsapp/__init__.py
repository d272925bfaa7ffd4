"""`heliograph whatsapp`: commands for WhatsApp, one module per group."""

from __future__ import annotations

from heliograph.cli.terminal.printing import group
from heliograph.cli.whatsapp import accounts, campaign, inbound, mirror, wallet

app = group("WhatsApp accounts, numbers, templates, wallets, rates, campaigns and callbacks from Meta.")
app.add_typer(accounts.app, name="account")
app.add_typer(mirror.numbers, name="number")
app.add_typer(mirror.templates, name="template")
app.add_typer(wallet.app, name="wallet")
app.add_typer(wallet.rates_app, name="rates")
app.add_typer(campaign.app, name="campaign")
app.add_typer(inbound.app, name="inbound")
