"""Passkeys: a signature is valid once, for this site and its person, and only if the device verified its user."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from typing import Any
from uuid import UUID

import cbor2
import msgspec
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from heliograph.base.actor import SYSTEM
from heliograph.base.crypto import derive_key
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.people import users
from heliograph.people.passkeys import ceremony, challenges, checking, keeping
from heliograph.people.passkeys.challenges import PasskeyRefused, Site, StoredPasskey

KEY = derive_key("k" * 32, "tests")
HERE = Site("sms.example.com", "https://sms.example.com")
PRESENT, VERIFIED = 0x01, 0x04


def text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


class Device:
    """What a phone does."""

    def __init__(self, id: bytes = b"passkey-1") -> None:
        self.id = id
        self.secret = ec.generate_private_key(ec.SECP256R1())

    @property
    def made(self) -> StoredPasskey:
        numbers = self.secret.public_key().public_numbers()
        key = {1: 2, 3: -7, -1: 1, -2: numbers.x.to_bytes(32, "big"), -3: numbers.y.to_bytes(32, "big")}
        return StoredPasskey(self.id, cbor2.dumps(key), 0)

    def shows(self, asked: bytes, *, where: Site = HERE, flags: int = PRESENT | VERIFIED, uses: int = 0) -> str:
        said: dict[str, Any] = {"type": "webauthn.get", "challenge": text(asked), "origin": where.origin}
        client = msgspec.json.encode(said | {"crossOrigin": False})
        data = hashlib.sha256(where.name.encode()).digest() + bytes([flags]) + uses.to_bytes(4, "big")
        signature = self.secret.sign(data + hashlib.sha256(client).digest(), ec.ECDSA(hashes.SHA256()))
        response = {"clientDataJSON": text(client), "authenticatorData": text(data), "signature": text(signature)}
        answer = {"id": text(self.id), "rawId": text(self.id), "type": "public-key", "response": response}
        return msgspec.json.encode(answer | {"clientExtensionResults": {}}).decode()


def asked() -> bytes:
    return challenges.read_challenge(KEY, challenges.challenge(KEY))


async def person(pool: Pool, email: str = "ana@example.com") -> UUID:
    async with pool.acquire() as conn:
        user, _ = await users.ensure(conn, SYSTEM, email=email)
    return user.id


async def check(pool: Pool, given: str, challenge: bytes, **more: Any) -> UUID:
    async with pool.acquire() as conn, conn.transaction():
        return await checking.check(conn, HERE, asked=challenge, given=given, **more)


async def test_what_was_signed_is_good_once_here_and_for_its_person(pool: Pool) -> None:
    ana, eva = await person(pool), await person(pool, "eva@example.com")
    phone = Device()
    async with pool.acquire() as conn:
        await keeping.add(conn, SYSTEM, user_id=ana, made=phone.made, asked=asked(), name="phone")
    challenge = asked()
    good = phone.shows(challenge, uses=3)
    assert await check(pool, good, challenge) == ana
    for given, what, more in (
        (good, challenge, {}),  # again
        (phone.shows(now := asked()), asked(), {}),  # for another challenge
        (phone.shows(now, where=Site("evil.example.com", "https://evil.example.com")), now, {}),
        (phone.shows(now, flags=PRESENT), now, {}),  # the device did not verify its user
        (phone.shows(now, uses=3), now, {}),  # a copy of the device: its counter went back
        (phone.shows(now, uses=4), now, {"user_id": eva}),
        (Device().shows(now, uses=4), now, {}),  # another key under the same id
        (Device(b"another").shows(now), now, {}),
        ("{}", now, {}),
        ('{"rawId": 7}', now, {}),
        ("nonsense", now, {}),
        ('{"rawId": ' + "[" * 9_000, now, {}),  # nested too deeply for any parser
        (f'{{"rawId": "{text(phone.id)}", "response": ' + "[" * 9_000, now, {}),
        (good[:-40], now, {}),
    ):
        with pytest.raises(PasskeyRefused):
            await check(pool, given, what, **more)
    assert await check(pool, phone.shows(now, uses=4), now, user_id=ana) == ana
    async with pool.acquire() as conn:
        (one,) = await keeping.list_all(conn, user_id=ana)
        assert one.used_at is not None
        with pytest.raises(NotFound):
            await keeping.remove(conn, SYSTEM, user_id=eva, id=one.id)
        await keeping.remove(conn, SYSTEM, user_id=ana, id=one.id)
        assert await keeping.list_all(conn, user_id=ana) == []
        await conn.execute("UPDATE passkey_challenges SET used_at = now() - $1::interval", keeping.REMEMBERED)
        await conn.execute(keeping.FORGET, clock.now(), 100)
        assert await conn.fetchval("SELECT count(*) FROM passkey_challenges") == 0


def test_what_is_nested_deeper_than_any_reader_goes_is_no_new_passkey() -> None:
    for given in ("[" * 9_000, '{"response": ' + "[" * 9_000):
        with pytest.raises(PasskeyRefused):
            ceremony.registered(HERE, asked(), given)


@pytest.mark.parametrize("key", [[], "x", b"x", {}, 7])
def test_what_has_no_key_is_no_new_passkey(key: object) -> None:
    challenge = asked()
    said = {"type": "webauthn.create", "challenge": text(challenge), "origin": HERE.origin}
    data = hashlib.sha256(HERE.name.encode()).digest() + b"\x45" + bytes(20) + b"\0\x09passkey-1" + cbor2.dumps(key)
    made = cbor2.dumps({"fmt": "none", "attStmt": {}, "authData": data})
    response = {"clientDataJSON": text(msgspec.json.encode(said)), "attestationObject": text(made)}
    answer = {"id": text(b"passkey-1"), "rawId": text(b"passkey-1"), "type": "public-key", "response": response}
    with pytest.raises(PasskeyRefused):
        ceremony.registered(HERE, challenge, msgspec.json.encode(answer).decode())


async def test_a_person_has_several_with_names_and_not_any_number(pool: Pool) -> None:
    ana = await person(pool)
    async with pool.acquire() as conn:
        for n in range(keeping.MOST):
            made = Device(b"key-%d" % n).made
            await keeping.add(conn, SYSTEM, user_id=ana, made=made, asked=asked(), name=f"phone {n}")
        for id, name in ((b"more", "phone"), (b"key-1", "twice"), (b"unnamed", " ")):
            with pytest.raises(Invalid):
                await keeping.add(conn, SYSTEM, user_id=ana, made=Device(id).made, asked=asked(), name=name)
        assert len(await keeping.known(conn, user_id=ana)) == keeping.MOST


def test_a_challenge_is_ours_and_young(monkeypatch: pytest.MonkeyPatch) -> None:
    made = challenges.challenge(KEY)
    assert len(challenges.read_challenge(KEY, made)) == 32
    said, _, tag = made.rpartition(".")
    for wrong in ("", "x", made[:-1], f"{said}0.{tag}", made.replace(".", ""), "\ud800"):
        with pytest.raises(PasskeyRefused):
            challenges.read_challenge(KEY, wrong)
    with pytest.raises(PasskeyRefused):
        challenges.read_challenge(derive_key("o" * 32, "tests"), made)
    ahead = clock.milliseconds() + 1000 * (challenges.GOOD_FOR + 1)
    monkeypatch.setattr(challenges.clock, "milliseconds", lambda: ahead)
    with pytest.raises(PasskeyRefused):
        challenges.read_challenge(KEY, made)


def test_browsers_keep_passkeys_for_names_that_are_safe() -> None:
    assert challenges.site("https://sms.example.com") == HERE
    assert challenges.site("http://localhost:8080") == Site("localhost", "http://localhost:8080")
    for origin in (
        "http://sms.example.com",
        "http://127.0.0.1:8080",
        "https://[::1]",
        "https://203.0.113.7",
        "",
        "https://[",
        "https://a]b",
    ):
        assert challenges.site(origin) is None
