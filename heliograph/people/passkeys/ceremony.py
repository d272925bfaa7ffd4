"""The two ceremonies of WebAuthn: registering a passkey, and showing that one has it. No database.

A challenge is 256 random bits with the time until which it is good, under our own MAC: it travels in the form, and no
row waits for somebody who never comes back. The rule nobody may break: what is verified is bound to our own origin, to
a challenge of ours, and to a person who was verified by the device (by fingerprint, face or PIN), so that a passkey
alone stands for password and second factor.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Sequence
from uuid import UUID

import msgspec
import webauthn
from webauthn.helpers import base64url_to_bytes, options_to_json
from webauthn.helpers.exceptions import WebAuthnException
from webauthn.helpers.structs import (
    AuthenticatorSelectionCriteria,
    PublicKeyCredentialDescriptor,
    ResidentKeyRequirement,
    UserVerificationRequirement,
)

from heliograph.base.crypto import Key, is_mac, mac
from heliograph.base.database import clock
from heliograph.base.errors import Refusal

#: Seconds for which a challenge is good: as long as a sign-in page may stand open before it has to be loaded again.
GOOD_FOR = 3600
_ORIGIN = re.compile(r"(?P<scheme>https?)://(?P<name>[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?)(?::[0-9]{1,5})?").fullmatch
#: Characters of what a browser sends.
LONGEST = 20_000


class PasskeyRefused(Refusal):
    """This passkey is not known here, or its response is not valid. Try again, or use your password."""

    code, status = "passkey_refused", 403


class Site(msgspec.Struct, frozen=True):
    """Where passkeys are good: the name that they are bound to, and the origin that browsers say."""

    name: str
    origin: str


class Registered(msgspec.Struct, frozen=True):
    """A passkey as it is stored."""

    credential_id: bytes
    public_key: bytes
    uses: int


def site(origin: str) -> Site | None:
    """The site of an origin such as `https://sms.example.com`; None: browsers keep no passkeys for it, because it is
    an address without a name, or comes without https and is not this machine."""
    found = _ORIGIN(origin.lower())
    if found is None or not (found["scheme"] == "https" or found["name"] == "localhost"):
        return None
    try:
        ipaddress.ip_address(found["name"])
    except ValueError:
        return Site(found["name"], origin)
    return None


def challenge(key: Key) -> str:
    """A fresh one, as `read_challenge` reads it."""
    said = f"{secrets.token_hex(32)}.{clock.milliseconds() // 1000 + GOOD_FOR}"
    return f"{said}.{mac(key, said.encode()).hex()}"


def read_challenge(key: Key, text: str) -> bytes:
    """The bytes that a device was asked to sign. Raises PasskeyRefused for one that is not ours, or too old."""
    said, _, tag = text[:300].rpartition(".")
    if not is_mac(key, said.encode("utf-8", "surrogatepass"), tag):
        raise PasskeyRefused
    random, _, until = said.partition(".")
    if int(until) < clock.milliseconds() // 1000:
        raise PasskeyRefused("It took too long. Load the page again.")
    return bytes.fromhex(random)


def registration_options(
    where: Site, asked: bytes, *, user_id: UUID, email: str, name: str, known: Sequence[bytes]
) -> str:
    """What a browser is told to make a passkey, as JSON. `known`: ids of those that the person has."""
    return options_to_json(
        webauthn.generate_registration_options(
            rp_id=where.name,
            rp_name="Heliograph",
            user_id=user_id.bytes,
            user_name=email,
            user_display_name=name,
            challenge=asked,
            authenticator_selection=AuthenticatorSelectionCriteria(
                resident_key=ResidentKeyRequirement.REQUIRED, user_verification=UserVerificationRequirement.REQUIRED
            ),
            exclude_credentials=[PublicKeyCredentialDescriptor(id=id) for id in known],
        )
    )


def registered(where: Site, asked: bytes, given: str) -> Registered:
    """The passkey that a browser made. Raises PasskeyRefused."""
    try:
        found = webauthn.verify_registration_response(
            credential=given[:LONGEST],
            expected_challenge=asked,
            expected_rp_id=where.name,
            expected_origin=where.origin,
            require_user_verification=True,
        )
    except (WebAuthnException, ValueError, KeyError, TypeError):
        raise PasskeyRefused from None
    return Registered(found.credential_id, found.credential_public_key, found.sign_count)


def sign_in_options(where: Site, asked: bytes) -> str:
    """What a browser is told to show a passkey, whichever of this site the person chooses, as JSON."""
    return options_to_json(
        webauthn.generate_authentication_options(
            rp_id=where.name, challenge=asked, user_verification=UserVerificationRequirement.REQUIRED
        )
    )


def claimed(given: str) -> bytes:
    """The id of the passkey that a browser says it used. Raises PasskeyRefused."""
    try:
        return base64url_to_bytes(msgspec.json.decode(given[:LONGEST], type=dict[str, object])["rawId"])  # type: ignore[arg-type]
    except (msgspec.MsgspecError, KeyError, ValueError, TypeError, AttributeError):
        raise PasskeyRefused from None


def shown(where: Site, asked: bytes, given: str, *, public_key: bytes, uses: int) -> int:
    """How often the device says that the passkey was used. Raises PasskeyRefused."""
    try:
        found = webauthn.verify_authentication_response(
            credential=given[:LONGEST],
            expected_challenge=asked,
            expected_rp_id=where.name,
            expected_origin=where.origin,
            credential_public_key=public_key,
            credential_current_sign_count=uses,
            require_user_verification=True,
        )
    except (WebAuthnException, ValueError, KeyError, TypeError):
        raise PasskeyRefused from None
    return found.new_sign_count
