"""What a person is shown once everything runs: addresses, the keys if they are new, how to send a first message."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec

from heliograph.demo.credentials import Credentials


class Welcome(msgspec.Struct, frozen=True):
    """What a start found or created, for display."""

    credentials: Credentials
    #: The file that contains them.
    path: Path
    #: True if this start created a key: only then is it shown on the terminal, where logs may keep it.
    keys_are_new: bool
    #: The URL of the dashboard, or a link that signs its owner in once while they have no password.
    dashboard: str = ""
    #: The URL of the console, or a link to its setup while no operator has finished theirs.
    console: str = ""


def show(ready: Welcome) -> None:
    """Print what a person needs to begin."""
    print(_text(ready), flush=True)


def _text(ready: Welcome) -> str:
    credentials, file = ready.credentials, shlex.quote(str(ready.path))
    body = '{"to":"+258841234567","message":"Hello from Heliograph"}'
    template = '{"name":"appointment_reminder","language":"en","category":"utility","parameters":["Ana","Thursday"]}'
    graph = credentials.whatsapp
    if ready.keys_are_new:
        keys = f"\n  Live key      {credentials.live_key}\n  Test key      {credentials.test_key}"
        bearer = f"'authorization: Bearer {credentials.live_key}'"
    else:
        # Shown once; from then on the command below reads the key from the file.
        keys = "\n  Keys          in the credentials file"
        bearer = f'"authorization: Bearer $(sed -n \'s/.*"live_key": "\\(.*\\)".*/\\1/p\' {file})"'
    return f"""
Heliograph is ready.

  Dashboard     {ready.dashboard}
  Console       {ready.console}
  API           {credentials.base_url}/v1
  Docs          {credentials.base_url}/docs, guide at {credentials.base_url}/guide{keys}
  Organization  {credentials.organization_id}
  SMSC          {credentials.smsc.host}:{credentials.smsc.port} (simulated, SMPP 3.4)
  Cloud API     http://{graph.host}:{graph.port} (simulated, WhatsApp)
  Credentials   {ready.path}

Send a first message:

  curl -sS {credentials.base_url}/v1/sms/send -H {bearer} \\
    -H "idempotency-key: $(cat /proc/sys/kernel/random/uuid)" -H 'content-type: application/json' \\
    -d '{body}'

And a WhatsApp template, which its simulated user reads within a second or two:

  curl -sS {credentials.base_url}/v1/whatsapp/messages -H {bearer} \\
    -H 'content-type: application/json' -d '{{"type":"template","to":"+258841234567",
    "phoneNumberId":"{graph.phone_number_id}","template":{template}}}'

Ctrl-C stops everything; the data stays."""
