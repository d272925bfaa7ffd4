"""The two ceremonies of WebAuthn: registering a passkey, and authenticating with it. No database.

The rule nobody may break: whatever is verified is bound to our own origin, to a challenge of ours, and to a person
verified by the device (by fingerprint, face or PIN), so that a passkey alone replaces password and second factor.
"""

from __future__ import annotations

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

from heliograph.people.passkeys.challenges import PasskeyRefused, Site, StoredPasskey

#: Maximum characters of what a browser sends, and what reading it may raise: RecursionError is the limit on nesting.
LONGEST = 20_000
_UNREADABLE = (
    WebAuthnException,
    msgspec.MsgspecError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
)


def registration_options(
    where: Site, asked: bytes, *, user_id: UUID, email: str, name: str, known: Sequence[bytes]
) -> str:
    """Options with which a browser creates a passkey, as JSON. `known`: ids of those that the person has."""
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


def registered(where: Site, asked: bytes, given: str) -> StoredPasskey:
    """The passkey that a browser created. Raises PasskeyRefused."""
    try:
        found = webauthn.verify_registration_response(
            credential=given[:LONGEST],
            expected_challenge=asked,
            expected_rp_id=where.name,
            expected_origin=where.origin,
            require_user_verification=True,
        )
    except _UNREADABLE:
        raise PasskeyRefused from None
    return StoredPasskey(found.credential_id, found.credential_public_key, found.sign_count)


def sign_in_options(where: Site, asked: bytes) -> str:
    """Options with which a browser authenticates by any of the person's passkeys for this site, as JSON."""
    return options_to_json(
        webauthn.generate_authentication_options(
            rp_id=where.name, challenge=asked, user_verification=UserVerificationRequirement.REQUIRED
        )
    )


def claimed(given: str) -> bytes:
    """The id of the passkey that a browser says it used. Raises PasskeyRefused."""
    try:
        return base64url_to_bytes(msgspec.json.decode(given[:LONGEST], type=dict[str, object])["rawId"])  # type: ignore[arg-type]
    except _UNREADABLE:
        raise PasskeyRefused from None


def shown(where: Site, asked: bytes, given: str, *, public_key: bytes, uses: int) -> int:
    """Verify an authentication; returns the device's count of uses of the passkey. Raises PasskeyRefused."""
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
    except _UNREADABLE:
        raise PasskeyRefused from None
    return found.new_sign_count
