"""Detects processes with different secret keys, by the fingerprints that they report with their heartbeats.

The rule nobody may break: a fingerprint says nothing about the secret key, nor about what is sealed.
"""

from __future__ import annotations

from collections import Counter

from heliograph.base import crypto
from heliograph.base.database.pool import Connection
from heliograph.base.process.heartbeat import IS_ALIVE
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import Check, said


def fingerprints(settings: Settings) -> list[bytes]:
    """Fingerprints of the secret key, and of the other one if set; empty if none is set."""
    return crypto.fingerprints(settings.secret_keys) if settings.secret_key else []


REPORTED = f"""
SELECT name, secret_keys FROM workers WHERE {IS_ALIVE} AND secret_keys <> '{{}}'
UNION ALL
SELECT name, secret_keys FROM web_processes WHERE {IS_ALIVE} AND secret_keys <> '{{}}'
 ORDER BY name
"""


async def unable(conn: Connection, settings: Settings) -> list[str]:
    """The names of running processes that could not read what is sealed under this secret key."""
    own = fingerprints(settings)[0]
    return [row["name"] for row in await conn.fetch(REPORTED) if own not in row["secret_keys"]]


async def run(conn: Connection, settings: Settings) -> list[Check]:
    """Check whether each running process can open what the others seal."""
    name = said("secret keys")
    found = [(row["name"], row["secret_keys"]) for row in await conn.fetch(REPORTED)]
    sealing = Counter(own[0] for _, own in found)
    # While the key is being changed, processes seal with either key, and can open both.
    blind = [process for process, own in found if not sealing.keys() <= set(own)]
    if not blind:
        return [Check(name, "ok", said("the processes have the same"))]
    [(usual, count)] = sealing.most_common(1)
    if count * 2 > len(found):
        blind = [process for process, own in found if usual not in own] or blind
    detail = said("%(names)s cannot read what other processes encrypt", names=", ".join(blind))
    remedy = said(
        "Restart them with the same HELIOGRAPH_SECRET_KEY as the others; `heliograph rekey --check` says whether a key"
        " is the one that everything is encrypted under. While it is being changed, each process needs both."
    )
    return [Check(name, "failed", detail, remedy)]
