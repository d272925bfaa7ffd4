"""What `heliograph up` makes on its first start: an organization that can send at once, with a simulated supplier.

Every step looks first, so that a start that was killed half way is simply done again. The keys' secrets are not in
the database; they stay in a file of the data directory, and a key whose secret is lost is replaced.
"""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

import msgspec

from heliograph.accounts import api_keys, organizations, quota
from heliograph.base.actor import Actor
from heliograph.base.crypto import hash_secret
from heliograph.base.db import Connection
from heliograph.base.settings import Settings
from heliograph.sms import sender_ids, suppliers

ORGANIZATION = "Demo organization"
SENDER = "HELIOGRAPH"
QUOTA = 1_000_000
SUPPLIER = "simulator"
#: Submits that may wait for their answer: the simulator is on this machine, and takes what comes.
WINDOW = 500


class Smsc(msgspec.Struct):
    """Where the simulated SMSC listens, and who may bind."""

    host: str
    port: int
    system_id: str
    password: str


class Credentials(msgspec.Struct):
    """The credentials file: all that a person or a script needs to begin."""

    base_url: str
    organization_id: str
    live_key: str
    test_key: str
    database_url: str
    smsc: Smsc


async def ensure(
    conn: Connection, settings: Settings, *, smsc: Smsc, known: Credentials | None
) -> tuple[UUID, str, str]:
    """Organization, sender, quota, keys and supplier, as far as they are missing.

    `known`: the credentials of an earlier start. Returns (organization id, live key, test key).
    """
    async with conn.transaction():
        listed = [one for one in await organizations.list_all(conn) if one.name == ORGANIZATION]
        organization = listed[-1] if listed else await organizations.create(conn, name=ORGANIZATION, state="active")
        operator = Actor(organization.id, None, "live", frozenset(), organization.state)
        if not listed:
            await quota.grant(conn, organization.id, amount=QUOTA, reason="demo")
        senders = {sender.value: sender for sender in await sender_ids.list_all(conn, operator)}
        if SENDER not in senders:
            requested = await sender_ids.request(conn, operator, value=SENDER)
            await sender_ids.review(conn, operator, id=requested.id, status="approved")
        live = await _key(conn, operator, "live", known.live_key if known else "")
        test = await _key(conn, operator, "test", known.test_key if known else "")
        await _supplier(conn, settings, smsc)
    return organization.id, live, test


KEY_WORKS = """
SELECT EXISTS (SELECT FROM api_keys WHERE organization_id = $1 AND secret_hash = $2 AND status = 'active')
"""


async def _key(conn: Connection, operator: Actor, mode: str, secret: str) -> str:
    if secret and await conn.fetchval(KEY_WORKS, operator.organization_id, hash_secret(secret)):
        return secret
    name = f"demo {mode}"
    for key in await api_keys.list_all(conn, operator):
        if key.name == name and key.status == "active":
            await api_keys.revoke(conn, operator, id=key.id)
    _, issued = await api_keys.issue(conn, operator, name=name, profile="full_access", mode=mode)
    return issued


async def _supplier(conn: Connection, settings: Settings, smsc: Smsc) -> None:
    key = suppliers.seal_key(settings)
    values = {
        "host": smsc.host,
        "port": smsc.port,
        "system_id": smsc.system_id,
        "tls": False,
        "window": WINDOW,
        "reconnect_seconds": 0.2,
        "reconnect_max_seconds": 2.0,
    }
    row = await conn.fetchrow("SELECT id, settings FROM suppliers WHERE name = $1", SUPPLIER)
    if row is None:
        await suppliers.add(conn, key, name=SUPPLIER, kind="smpp", settings=values, secret=smsc.password)
    elif msgspec.json.decode(row["settings"]) != values:
        await suppliers.reconfigure(conn, key, id=row["id"], settings=values, secret=smsc.password)


def read_credentials(path: Path) -> Credentials | None:
    """What an earlier start wrote, or None."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Credentials)
    except (OSError, msgspec.MsgspecError):
        return None


def write_credentials(path: Path, credentials: Credentials) -> None:
    """Write for the owner alone (0600), whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(credentials), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
