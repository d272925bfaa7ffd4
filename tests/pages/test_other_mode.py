"""Every page and form that takes an id is requested in test mode with each id of a live thing: the response equals that
for an id that never existed, and nothing live is changed. What the two modes share is excepted."""

from __future__ import annotations

import re
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

#: What every request leaves: that a form was received, so that one submitted twice is answered once, and, by the
#: minute, when the session was used.
KEPT = frozenset({"idempotency", "sessions"})


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
    changed = [table for table, rows in after.items() if rows != before[table] and table not in KEPT]
    assert (bad, changed) == ([], [])


#: Addresses without a mode: a person's own, the whole installation's, and what only the browser stores.
PLACELESS = re.compile(
    r"/(account|checklist|columns|docs|guide|login|logout|organizations|preferences|state|static)\b|/v1/"
)


async def test_pages_in_test_mode_lead_to_pages_in_test_mode(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    """Also those of what both modes share. Otherwise whoever comes from there sends live messages."""
    own = Party(api, tenant, MARK)
    await own.make(pool)
    left, looked = set(), 0
    for route in ROUTES:
        if route.method != "GET" or "{" in route.path or route.is_public or route.is_personal:
            continue
        page = await owner.get(route.path + "?mode=test")
        if page.status != 200 or "<html" not in page.text:
            continue
        looked += 1
        for tag, where in re.findall(
            r'(<(?:a|form|button)\b[^>]*?\s(?:href|action|formaction)="(/[^"]*)"[^>]*>)', page.text
        ):
            if 'method="get"' in tag:
                inside = page.text.partition(tag)[2].partition("</form>")[0]
                is_kept = 'name="mode" value="test"' in inside
            else:
                is_kept = "mode=" in where
            # Ledgers are of live messages.
            is_live = route.path.endswith("/ledger") and where.startswith("/messages/")
            if not (is_kept or is_live or PLACELESS.match(where)):
                left.add((route.path, where))
    assert (left, looked > 40) == (set(), True)
