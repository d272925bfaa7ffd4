"""THE table of channels that campaigns go out by."""

from __future__ import annotations

from heliograph.campaigns.channel import Channel
from heliograph.campaigns.sms_channel import SmsChannel
from heliograph.campaigns.whatsapp_channel import WhatsAppChannel

CHANNELS: dict[str, Channel] = {each.name: each for each in (SmsChannel(), WhatsAppChannel())}
