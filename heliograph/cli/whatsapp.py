"""`heliograph whatsapp`: what operators do about WhatsApp. Each group of commands stands in a file of its own."""

from __future__ import annotations

from heliograph.cli import whatsapp_accounts, whatsapp_campaign, whatsapp_inbound, whatsapp_mirror, whatsapp_wallet
from heliograph.cli.console import group

app = group("WhatsApp accounts, numbers, templates, wallets, rates, campaigns and callbacks from Meta.")
app.add_typer(whatsapp_accounts.app, name="account")
app.add_typer(whatsapp_mirror.numbers, name="number")
app.add_typer(whatsapp_mirror.templates, name="template")
app.add_typer(whatsapp_wallet.app, name="wallet")
app.add_typer(whatsapp_wallet.rates_app, name="rates")
app.add_typer(whatsapp_campaign.app, name="campaign")
app.add_typer(whatsapp_inbound.app, name="inbound")
