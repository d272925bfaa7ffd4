"""Codes of authenticator apps, and the recovery codes that count."""

from __future__ import annotations

import pyotp
import pytest

from heliograph.base.actor import SYSTEM
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid
from heliograph.base.process.settings import Settings
from heliograph.people import factors, users

KEY = "a secret key for tests, long enough"


async def test_only_recovery_codes_that_count_are_shown_again(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever typed the code that they had signed in with meanwhile, or came to a process with another secret key, was
    shown ten that nobody could use."""
    key = factors.seal_key(Settings(secret_key=KEY))
    later = factors.seal_key(Settings(secret_key=KEY.upper(), other_secret_key=KEY))
    now, secret = clock.milliseconds(), factors.new_secret()
    monkeypatch.setattr(clock, "milliseconds", lambda: now)
    first, second = [pyotp.TOTP(secret).at(now // 1000 + n * factors.STEP) for n in (0, 1)]
    async with pool.acquire() as conn:
        id = (await users.ensure(conn, SYSTEM, email="ana@example.com"))[0].id
        named = {"user_id": id, "secret": secret}
        codes = await factors.enable(conn, SYSTEM, key, **named, given=first)
        assert await factors.check(conn, key, user_id=id, given=second)
        for other, given in ((key, second), (later, first), (later, second)):
            with pytest.raises(Invalid):
                await factors.enable(conn, SYSTEM, other, **named, given=given)
        assert await factors.enable(conn, SYSTEM, key, **named, given=first) == codes
        assert await factors.check(conn, later, user_id=id, given=codes[0])
        assert await factors.codes_left(conn, user_id=id) == len(codes) - 1
