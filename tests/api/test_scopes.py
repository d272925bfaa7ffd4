"""Every operation with a key of every single scope: what the table declares is what the server does."""

from __future__ import annotations

import re
import uuid
from typing import Any

from heliograph.accounts.api_keys import lifecycle
from heliograph.accounts.api_keys.scopes import SCOPES
from heliograph.api.door.operation import Operation
from heliograph.api.routes import OPERATIONS
from heliograph.base.database.pool import Pool

from .conftest import Api, make_tenant, running


async def call(api: Api, operation: Operation, secret: str) -> tuple[int, Any]:
    """(status, body) of a request that names nothing that exists, with an unreadable body: a request that is allowed
    changes nothing."""
    path = re.sub(r"\{\w+\}", lambda _: str(uuid.uuid4()), operation.path.removesuffix("/"))
    headers = {"Idempotency-Key": str(uuid.uuid4()), "Content-Type": "application/json"}
    sent = {} if operation.request is None else {"data": b"{"}
    status, _, body = await api.ask(
        operation.method, path, headers=headers | ({"x-api-key": secret} if secret else {}), **sent
    )
    return status, body


async def test_every_operation_with_every_scope(api: Api, pool: Pool) -> None:
    secrets = {}
    for scope in SCOPES:  # an organization has five keys at most
        tenant = await make_tenant(pool, amount=0)
        async with pool.acquire() as conn:
            _, secrets[scope] = await lifecycle.issue(conn, tenant.actor, name=scope, scopes=[scope])
    for operation in OPERATIONS:
        for scope, secret in secrets.items():
            status, body = await call(api, operation, secret)
            where = (operation.id, scope, body)
            assert status < 500, where
            if operation.scope in (None, scope):
                assert status not in (401, 403), where
            else:
                assert (status, body["error"]["code"]) == (403, "api_key_scope_required"), where
                assert body["error"]["details"]["required"] == [operation.scope], where


async def test_no_operation_without_a_key(database_url: str) -> None:
    async with running(database_url, rate_failures=10_000, rate_unauthenticated=10_000) as api:
        for operation in OPERATIONS:
            for secret in ("", "hg_live_" + "0" * 36, "hg_test_" + "a" * 36):
                status, body = await call(api, operation, secret)
                assert (status == 401) == (operation.scope is not None), (operation.id, secret, body)
