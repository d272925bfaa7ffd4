"""Journey 14: every page and form that takes an id is requested with each id of another organization. The response
equals that for an id that never existed, and nothing of the other organization is shown or changed.

The response time gives nothing away either: both ids lead to the same statements, each of which names the reader's own
organization, and to the same number of rows. That can be proven, unlike measured times.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import pytest

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.dashboard.table import ROUTES
from heliograph.inbox import threads
from heliograph.inbox.threads import InboundMessage
from heliograph.overview.searching import finding
from tests.api.test_isolation import MARK, Party
from tests.statements import StatementRecorder, recording_statements

from .conftest import Api, Browser, Tenant, make_person, make_tenant, running

#: Ids that only pages take.
OTHERS = """
SELECT 'thread', id::text FROM inbox_threads WHERE organization_id = $1
UNION ALL SELECT 'template', id::text FROM whatsapp_templates WHERE organization_id = $1
UNION ALL SELECT 'member', user_id::text FROM memberships WHERE organization_id = $1
UNION ALL SELECT 'received', id::text FROM received_messages WHERE organization_id = $1
UNION ALL SELECT 'organization', $1::text
"""
_volatile = re.compile(
    r'name="_(?:token|once)" value="[^"]*"|[0-9a-f]{8}…[0-9a-f]{4}|<time .*?</time>|data-made="\d+"|\d\d:\d\d:\d\d'
)


@pytest.fixture
async def wire(database_url: str) -> AsyncIterator[tuple[StatementRecorder, str]]:
    async with recording_statements(database_url) as made:
        yield made


@pytest.fixture
async def api(wire: tuple[StatementRecorder, str]) -> AsyncIterator[Api]:
    """A server whose statements are recorded."""
    async with running(wire[1]) as found:
        yield found


async def shown(browser: Browser, method: str, path: str, id: str, token: str) -> tuple[int, str, str]:
    """Everything that can be distinguished from outside, except for the requested id."""
    where = path.replace("{id}", id)
    where = where.replace("{event}", id)
    page = await (
        browser.get(where) if method == "GET" else browser.post(where, {"_token": token, "_once": str(uuid7())})
    )
    text = _volatile.sub("", page.text).replace(page.headers.get("x-request-id", id), "").replace(id, "")
    return page.status, page.path.replace(id, ""), text


@pytest.mark.lasts(60)
async def test_another_organizations_ids_are_as_unknown_as_any(
    api: Api, pool: Pool, tenant: Tenant, wire: tuple[StatementRecorder, str], owner: Browser, other_browser: Browser
) -> None:
    database, _ = wire
    other = Party(api, await make_tenant(pool), MARK)
    await other.make(pool)
    await make_person(pool, other.tenant, "zacarias@example.com")
    heard = await pool.fetchrow(
        "SELECT sender_id, id FROM received_messages WHERE organization_id = $1 LIMIT 1", other.tenant.id
    )
    async with pool.acquire() as conn:
        await threads.note(
            conn, [InboundMessage(other.tenant.id, "sms", heard[0], "+258840000001", heard[1], clock.now())]
        )
    ids = other.own | {row[0]: row[1] for row in await pool.fetch(OTHERS, other.tenant.id)}
    assert len(ids) > 14
    ids |= {
        "of year 10000": "ffffffff-ffff-7fff-8fff-ffffffffffff",
        "of year 4000": "3a4f0000-0000-7fff-8fff-ffffffffffff",
    }
    token = (await owner.get("/account")).form("/account")["_token"]
    before = await other.state(pool)
    routes = [route for route in ROUTES if "{id}" in route.path]
    assert len(routes) > 40
    own, looked = [tenant.id, await pool.fetchval("SELECT id FROM users WHERE email = 'ana@example.com'")], 0
    for route in routes:
        # An id can contain its time, around which it is then searched: someone who has the id knows that time. Derived
        # ids are random bits, of which some look like such an id.
        unknowns = {}
        for tells_time, unknown in ((True, uuid7()), (False, uuid4())):
            database.take()
            absent = await shown(owner, route.method, route.path, str(unknown), token)
            unknowns[tells_time] = absent, database.lookups(unknown, *own)
        looked += len(unknowns[True][1])
        for kind, id in ids.items():
            missing, wanted = unknowns[finding.made_at(id) is not None]
            answer = await shown(owner, route.method, route.path, id, token)
            assert answer == missing, (route.method, route.path, kind)
            assert database.lookups(UUID(id), *own) == wanted, (route.method, route.path, kind)
            assert MARK not in answer[2].lower(), (route.method, route.path, kind)
    assert looked > len(routes)
    after = await other.state(pool)
    assert [table for table, rows in after.items() if rows != before[table]] == []
    # Their own organization does find the ids.
    await other_browser.sign_in("zacarias@example.com")
    unseen = set()
    for path in {route.path for route in routes if route.method == "GET"}:
        answers = [
            await other_browser.get(path.replace("{id}", id).replace("{event}", other.own["event"]))
            for id in ids.values()
        ]
        if not any(page.status == 200 for page in answers):
            unseen.add(path)
    assert unseen == set()
