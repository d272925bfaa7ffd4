"""The guard over HTTP: what one process learns about a range is known to the others, and a challenged send is
accepted."""

from __future__ import annotations

from typing import Any

from heliograph.base.database.pool import Pool
from heliograph.guard import holds, rules
from tests.processes import until_true

from .conftest import Api, Tenant, running

BLOCK = "25884123"
BODY = {"to": f"+{BLOCK}4567", "message": "Your code is 123456"}


async def test_two_processes_refuse_and_take_the_send_that_was_challenged(
    database_url: str, pool: Pool, tenant: Tenant
) -> None:
    async with running(database_url) as first, running(database_url) as second:
        async with pool.acquire() as conn:
            await rules.configure(conn, tenant.id, policy="ask")
            await holds.begin(conn, [holds.Found(tenant.id, BLOCK, "block", ("thousand_full",), 70)])

        async def ask(api: Api, key: str, **fields: Any) -> tuple[int, str | None, Any]:
            headers = tenant.headers | {"Idempotency-Key": key}
            status, answered, body = await api.ask("POST", "/sms/send", json=BODY | fields, headers=headers)
            return status, answered.get("x-idempotency-status"), body

        # A process reads the ranges once a second while messages arrive.
        tries = 0
        for api in (first, second):

            async def is_known(api: Api = api) -> bool:
                nonlocal tries
                tries += 1
                return (await ask(api, f"try-{tries}"))[0] == 403

            await until_true(is_known)
        status, _, body = await ask(first, "code")
        assert (status, body["error"]["code"]) == (403, "challenge_required")
        before = await pool.fetchval("SELECT count(*) FROM messages")
        # The same send, to another process: accepted once, and replayed with and without the field.
        stored = await ask(second, "code", challengePassed=True)
        assert stored[:2] == (202, "stored")
        for api, fields in ((first, {"challengePassed": True}), (second, {}), (first, {})):
            assert (await ask(api, "code", **fields))[1:] == ("replayed", stored[2])
        assert await pool.fetchval("SELECT count(*) FROM messages") == before + 1
        assert await pool.fetchval("SELECT count(*) FROM guard_challenges") >= 1
        # The preview responds like the send.
        for fields, expected in (({}, 403), ({"challengePassed": True}, 200)):
            status, _, body = await first.ask("POST", "/sms/preview", json=BODY | fields, headers=tenant.headers)
            assert status == expected, body
        status, _, body = await first.ask(
            "POST", "/sms/preview", json=BODY | {"challengePassed": "yes"}, headers=tenant.headers
        )
        assert (status, body["error"]["details"]["fields"][0]["field"]) == (400, "challengePassed")
