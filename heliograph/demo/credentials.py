"""`credentials.json` of `heliograph up`: everything that a person, a script or another command needs to begin.

Every command reads it, so it knows nothing of what the credentials are for.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec

from heliograph.base.process import private_files

#: The networks of this machine only.
LOOPBACK = "127.0.0.0/8,::1/128"
#: What `up` on a loopback address allows webhooks, unless these variables are set.
LOCAL_WEBHOOKS = {"HELIOGRAPH_WEBHOOK_ALLOW_HTTP": "true", "HELIOGRAPH_WEBHOOK_ALLOW_NETWORKS": LOOPBACK}


class Smsc(msgspec.Struct):
    """The address of the simulated SMSC, and the credentials for binding."""

    host: str
    port: int
    system_id: str
    password: str


class Graph(msgspec.Struct):
    """The address of the simulated Cloud API, its configuration, and the number to send from."""

    host: str
    port: int
    app_secret: str
    verify_token: str
    token: str
    #: The number's id here, for `phoneNumberId`; empty until the number has been fetched from there.
    phone_number_id: str = ""


class Credentials(msgspec.Struct):
    """The credentials file: everything that a person or a script needs to begin."""

    base_url: str
    organization_id: str
    live_key: str
    test_key: str
    database_url: str
    smsc: Smsc
    #: A file from a version without WhatsApp can still be read.
    whatsapp: Graph = msgspec.field(default_factory=lambda: new_graph())
    #: True if webhooks may be sent to LOOPBACK, which commands that check their addresses have to know.
    has_local_webhooks: bool = False


def new_graph() -> Graph:
    """A simulated Cloud API with new secrets, but no port yet."""
    return Graph("127.0.0.1", 0, *(secrets.token_hex(16) for _ in range(3)))


def read_credentials(path: Path) -> Credentials | None:
    """The file of an earlier start, or None."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Credentials)
    except (OSError, msgspec.MsgspecError):
        return None


def write_credentials(path: Path, credentials: Credentials) -> None:
    """Write atomically, readable only by the owner (0600)."""
    _write(path, credentials)


def write_simulators(smsc: Path, graph: Path, credentials: Credentials) -> None:
    """Write the configuration of each simulator for `heliograph simulate … --config`: on a command line everybody on
    this machine could read it. `up` reserves their addresses, which they therefore share."""
    allowed = {credentials.smsc.system_id: credentials.smsc.password}
    _write(smsc, {"options": {"systems": allowed, "shared": True}})
    told = credentials.whatsapp
    kept = {"app_secret": told.app_secret, "verify_token": told.verify_token, "token": told.token, "shared": True}
    _write(graph, {"options": kept})


def _write(path: Path, value: object) -> None:
    private_files.write(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
