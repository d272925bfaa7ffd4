"""`heliograph whatsapp`: what operators do about WhatsApp. Each group of commands stands in a file of its own."""

from __future__ import annotations

from heliograph.cli import whatsapp_campaign, whatsapp_wallet
from heliograph.cli.console import group

app = group("WhatsApp: wallets and rates, and campaigns.")
app.add_typer(whatsapp_wallet.app, name="wallet")
app.add_typer(whatsapp_wallet.rates_app, name="rates")
app.add_typer(whatsapp_campaign.app, name="campaign")
