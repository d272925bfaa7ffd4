"""The table of channels that campaigns use."""

from __future__ import annotations

from heliograph.campaigns.channels.contract import Channel
from heliograph.campaigns.channels.sms import SmsChannel
from heliograph.campaigns.channels.whatsapp import WhatsAppChannel

CHANNELS: dict[str, Channel] = {each.name: each for each in (SmsChannel(), WhatsAppChannel())}
