"""Second factors: the codes of an authenticator app (TOTP, RFC 6238) and recovery codes for when it is lost.

The rule nobody may break: a code is valid once. The secret is sealed, recovery codes are hashed.
"""

from __future__ import annotations

import contextlib
from uuid import UUID

import pyotp

from heliograph.audit import recording as audit
from heliograph.base import crypto
from heliograph.base.actor import Actor, Principal
from heliograph.base.crypto import Key, hash_secret
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.base.process.settings import Settings

#: Lifetime of a code in seconds, and how many codes before and after the current one also count, since phones' clocks
#: differ.
STEP, AROUND = 30, 1
RECOVERY_CODES = 10
#: Without easily confused characters.
_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"


def seal_key(settings: Settings) -> Key:
    """The key that seals secrets of authenticator apps."""
    return crypto.derive_key(settings.secret_keys, "authenticator secrets")


def new_secret() -> str:
    """A new secret for an app, 160 bits in base32."""
    return pyotp.random_base32(32)


def address(secret: str, *, email: str) -> str:
    """The otpauth: URL of a secret, for a QR code."""
    return pyotp.TOTP(secret).provisioning_uri(name=email, issuer_name="Heliograph")


ENABLE = "UPDATE users SET totp = $2, totp_step = $3 WHERE id = $1"
FORGET_CODES = "DELETE FROM recovery_codes WHERE user_id = $1"
ARE_KEPT = "SELECT EXISTS (SELECT FROM recovery_codes WHERE user_id = $1 AND code_hash = ANY ($2))"
ADD_CODES = "INSERT INTO recovery_codes (user_id, code_hash) SELECT $1, unnest($2::bytea[])"


async def enable(
    conn: Connection, by: Actor | Principal, key: Key, *, user_id: UUID, secret: str, given: str
) -> list[str]:
    """Require codes from now on. `given`: a code that proves that the app has `secret`. Returns ten recovery codes,
    which are stored nowhere: the same ones again if this is repeated, as by a reload of the page that shows them.
    Raises Invalid."""
    wrong = Invalid(("code", "wrong", "This code is not correct. Check your phone's clock."))
    step = _step_of(secret, given, after=0)
    if step is None:
        raise wrong
    codes = [_code_of(key, f"recovery/{user_id}/{secret}/{step}/{n}") for n in range(RECOVERY_CODES)]
    async with conn.transaction():
        hashes = [hash_secret(code) for code in codes]
        row = await conn.fetchrow(SECRET, user_id)
        if row is not None and step <= row["totp_step"] and _opened(key, user_id, row["totp"]) == secret:
            # Those of this code, unless it was used for something else: then nobody could use any of them.
            if not await conn.fetchval(ARE_KEPT, user_id, hashes):
                raise wrong
            return codes
        await conn.execute(ENABLE, user_id, crypto.seal(key, secret.encode(), f"users/{user_id}"), step)
        await conn.execute(FORGET_CODES, user_id)
        await conn.execute(ADD_CODES, user_id, hashes)
        await audit.record(conn, by, "user.factor_changed", object_id=user_id, after={"authenticator": "on"})
    return codes


DISABLE = "UPDATE users SET totp = NULL, totp_step = 0 WHERE id = $1"


async def disable(conn: Connection, by: Actor | Principal, *, user_id: UUID) -> None:
    """Require only the password."""
    async with conn.transaction():
        await conn.execute(DISABLE, user_id)
        await conn.execute(FORGET_CODES, user_id)
        await audit.record(conn, by, "user.factor_changed", object_id=user_id, after={"authenticator": "off"})


SECRET = "SELECT totp, totp_step FROM users WHERE id = $1 AND totp IS NOT NULL FOR NO KEY UPDATE"  # noqa: S105
NOTE_STEP = "UPDATE users SET totp_step = $2 WHERE id = $1"
USE_CODE = "DELETE FROM recovery_codes WHERE user_id = $1 AND code_hash = $2 RETURNING true"
CODES_LEFT = "SELECT count(*) FROM recovery_codes WHERE user_id = $1"


async def check(conn: Connection, key: Key, *, user_id: UUID, given: str) -> bool:
    """True if it is an unused code of the person's app, or a recovery code, which is used up. Recovery codes count even
    if the app's secret was sealed with another secret key."""
    async with conn.transaction():
        row = await conn.fetchrow(SECRET, user_id)
        if row is None:
            return False
        secret = _opened(key, user_id, row["totp"])
        step = None if secret is None else _step_of(secret, given, after=row["totp_step"])
        if step is not None:
            await conn.execute(NOTE_STEP, user_id, step)
            return True
        return bool(await conn.fetchval(USE_CODE, user_id, hash_secret(_recovery_code(given))))


async def codes_left(conn: Connection, *, user_id: UUID) -> int:
    """How many recovery codes are unused."""
    left: int = await conn.fetchval(CODES_LEFT, user_id)
    return left


def _step_of(secret: str, given: str, *, after: int) -> int | None:
    """The time step of a code, if it is currently accepted and later than `after`."""
    digits = given.replace(" ", "")
    now = clock.milliseconds() // 1000 // STEP
    app = pyotp.TOTP(secret)
    for step in range(now - AROUND, now + AROUND + 1):
        if step > after and crypto.constant_time_equal(app.generate_otp(step), digits):
            return step
    return None


def _recovery_code(given: str) -> str:
    """A recovery code as it was shown, however its letters are separated by whoever copies them from paper."""
    letters = [one for one in given[:64].lower() if one.isalnum()]
    return "-".join("".join(letters[at : at + 4]) for at in range(0, len(letters), 4))


def _opened(key: Key, user_id: UUID, sealed: bytes) -> str | None:
    """The secret of a person's app; None if it was sealed with another secret key."""
    with contextlib.suppress(crypto.Unsealable):
        return crypto.unseal(key, sealed, f"users/{user_id}").decode()
    return None


def _code_of(key: Key, what: str) -> str:
    """A recovery code: random to whoever lacks the key, and always the same for the same text."""
    left, letters = int.from_bytes(crypto.mac(key, what.encode())), []
    for _ in range(12):
        left, at = divmod(left, len(_LETTERS))
        letters.append(_LETTERS[at])
    return "-".join("".join(letters[at : at + 4]) for at in range(0, 12, 4))
