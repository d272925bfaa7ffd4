"""Authentication: finds the owner of an active key by the SHA-256 of its secret."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

import msgspec

from heliograph.base.actor import Actor, RateLimits
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, Refusal

#: Rate limits of an organization that has none of its own.
NO_LIMITS = RateLimits()


class Unauthorized(Refusal):
    """The API key is missing, invalid, revoked, suspended or expired, or may not be used from this address."""

    code, status = "unauthorized", 401

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message)
        self.headers = {"www-authenticate": "Bearer"}


class KeyOwner(msgspec.Struct, frozen=True):
    """The owner of an active key, and the networks it may be used from (empty: any)."""

    actor: Actor
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]


AUTHENTICATE = """
SELECT k.secret_hash, k.id AS key_id, k.mode, k.scopes, k.allowed_ips,
       o.id AS organization_id, o.state, o.smart_encoding, o.replace_accents, o.guarantee,
       o.validity_seconds, o.allowed_countries, o.rate_sms_send, o.rate_campaigns, o.rate_mutations, o.rate_reads
  FROM api_keys k JOIN organizations o ON o.id = k.organization_id
 WHERE k.secret_hash = ANY($1) AND k.status = 'active' AND (k.expires_at IS NULL OR k.expires_at > now())
"""


async def authenticate_many(conn: Connection, hashes: Sequence[bytes]) -> list[KeyOwner | None]:
    """The owner of each key, by its secret's SHA-256, in order; None if there is no active key."""
    found = {row["secret_hash"]: _who(row) for row in await conn.fetch(AUTHENTICATE, list(hashes))}
    return [found.get(digest) for digest in hashes]


def parsed_networks(texts: Sequence[str]) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Addresses and CIDR networks. Raises Invalid."""
    try:
        if any("%" in text for text in texts):  # a zone id, meaningful on one machine only (RFC 4007 §11)
            raise ValueError
        return tuple(ipaddress.ip_network(text, strict=False) for text in texts)
    except ValueError:
        raise Invalid(("allowed_ips", "format", "`allowed_ips` must list addresses or CIDR networks")) from None


def _who(row: Any) -> KeyOwner:
    countries = row["allowed_countries"]
    limits = RateLimits(row["rate_sms_send"], row["rate_campaigns"], row["rate_mutations"], row["rate_reads"])
    actor = Actor(
        organization_id=row["organization_id"],
        key_id=row["key_id"],
        mode=row["mode"],
        scopes=frozenset(row["scopes"]),
        state=row["state"],
        smart_encoding=row["smart_encoding"],
        replace_accents=row["replace_accents"],
        guarantee=row["guarantee"],
        validity_seconds=row["validity_seconds"],
        allowed_countries=None if countries is None else frozenset(countries),
        rate_limits=None if limits == NO_LIMITS else limits,
    )
    return KeyOwner(actor, parsed_networks(row["allowed_ips"]))
