"""`heliograph whatsapp`: what operators do about WhatsApp. Each group of commands stands in a file of its own."""

from __future__ import annotations

from heliograph.cli import whatsapp_campaign
from heliograph.cli.console import group

app = group("WhatsApp: campaigns.")
app.add_typer(whatsapp_campaign.app, name="campaign")
