"""Challenges that a device signs, and the sites that passkeys are bound to.

A challenge is 256 random bits and an expiry time, protected by our own MAC: it travels in the form, and no row is left
behind by somebody who never comes back.
"""

from __future__ import annotations

import ipaddress
import re
import secrets

import msgspec

from heliograph.base.crypto import Key, is_mac, mac
from heliograph.base.database import clock
from heliograph.base.errors import Refusal

#: Validity of a challenge in seconds: how long a sign-in page may stay open before it has to be reloaded.
GOOD_FOR = 3600
_ORIGIN = re.compile(r"(?P<scheme>https?)://(?P<name>[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?)(?::[0-9]{1,5})?").fullmatch


class PasskeyRefused(Refusal):
    """This passkey is not registered here, or its response is not valid. Try again, or use your password."""

    code, status = "passkey_refused", 403


class Site(msgspec.Struct, frozen=True):
    """Where passkeys are valid: the name that they are bound to, and the origin that browsers report."""

    name: str
    origin: str


class StoredPasskey(msgspec.Struct, frozen=True):
    """A passkey as it is stored."""

    credential_id: bytes
    public_key: bytes
    uses: int


def site(origin: str) -> Site | None:
    """The site of an origin such as `https://sms.example.com`; None: browsers support no passkeys for it, because it is
    an IP address, or is served without https and is not this machine."""
    found = _ORIGIN(origin.lower())
    if found is None or not (found["scheme"] == "https" or found["name"] == "localhost"):
        return None
    try:
        ipaddress.ip_address(found["name"])
    except ValueError:
        return Site(found["name"], origin)
    return None


def challenge(key: Key) -> str:
    """A new challenge, in the form that `read_challenge` reads."""
    said = f"{secrets.token_hex(32)}.{clock.milliseconds() // 1000 + GOOD_FOR}"
    return f"{said}.{mac(key, said.encode()).hex()}"


def read_challenge(key: Key, text: str) -> bytes:
    """The bytes that a device was asked to sign. Raises PasskeyRefused for a challenge that is not ours, or too old."""
    said, _, tag = text[:300].rpartition(".")
    if not is_mac(key, said.encode("utf-8", "surrogatepass"), tag):
        raise PasskeyRefused
    random, _, until = said.partition(".")
    if int(until) < clock.milliseconds() // 1000:
        raise PasskeyRefused("It took too long. Load the page again.")
    return bytes.fromhex(random)
