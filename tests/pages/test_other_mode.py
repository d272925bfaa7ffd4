"""Every page and form that takes an id is requested in test mode with each id of a live thing: the response equals that
for an id that never existed, and nothing live is changed. What the two modes share is excepted."""

from __future__ import annotations

from uuid import uuid4

import pytest

from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.dashboard.table import ROUTES
from heliograph.overview.searching import finding
from tests.api.test_isolation import MARK, Party

from .conftest import Api, Browser, Tenant
from .test_foreign import OTHERS, shown

#: Found whatever the mode.
SHARED = frozenset({"sender", "text", "whatsapp_number", "template", "member", "received", "organization", "export"})


@pytest.mark.lasts(60)
async def test_live_things_are_unknown_in_test_mode(api: Api, pool: Pool, tenant: Tenant, owner: Browser) -> None:
    own = Party(api, tenant, MARK)
    await own.make(pool)
    ids = own.own | {row[0]: row[1] for row in await pool.fetch(OTHERS, tenant.id)}
    token = (await owner.get("/account")).form("/account")["_token"]
    before, bad = await own.state(pool), []
    for route in ROUTES:
        if "{id}" not in route.path or route.is_shared or route.is_public or route.is_personal:
            continue
        where = route.path + "?mode=test"
        unknown = {
            tells_time: await shown(owner, route.method, where, str(id), token)
            for tells_time, id in ((True, uuid7()), (False, uuid4()))
        }
        for kind, id in ids.items():
            if kind in SHARED:
                continue
            answer = await shown(owner, route.method, where, id, token)
            if answer != unknown[finding.made_at(id) is not None]:
                bad.append((route.method, route.path, kind, answer[0], answer[1]))
    after = await own.state(pool)
    # That a form was received is kept, so that one submitted twice is answered once.
    changed = [table for table, rows in after.items() if rows != before[table] and table != "idempotency"]
    assert (bad, changed) == ([], [])
