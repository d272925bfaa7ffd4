"""What the bell told a person alone, such as from where they signed in, ends with their membership or account."""

from __future__ import annotations

import pytest

from heliograph import notices
from heliograph.base.actor import SYSTEM
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.notices import Notice, reading
from heliograph.people import memberships, users
from tests.rules.factories import organization


@pytest.mark.parametrize("everywhere", [False, True])
async def test_notices_of_somebody_who_was_removed_go(pool: Pool, everywhere: bool) -> None:
    acme, other = await organization(pool), await organization(pool)
    async with pool.acquire() as conn:
        ana, bia = [(await users.ensure(conn, SYSTEM, email=f"{name}@example.com"))[0].id for name in ("ana", "bia")]
        for actor in (acme, other):
            for one in (ana, bia):
                await memberships.add(conn, actor, user_id=one, role="viewer")
                told = Notice(actor.organization_id, "sign_in.new", f"{one}", "192.0.2.1", user_id=one)
                await notices.record(conn, told)
                await reading.read(conn, actor, user_id=one, up_to=uuid7())
            await notices.record(conn, Notice(actor.organization_id, "quota.used", "80"))
        if everywhere:
            await users.remove(conn, SYSTEM, id=ana)
        else:
            await memberships.remove(conn, acme, user_id=ana)
        kept = {(row[0], row[1]) for row in await conn.fetch("SELECT organization_id, user_id FROM notices")}
        reads = {(row[0], row[1]) for row in await conn.fetch("SELECT organization_id, user_id FROM notice_reads")}
    theirs = {(one.organization_id, bia) for one in (acme, other)}
    theirs |= set() if everywhere else {(other.organization_id, ana)}
    assert reads == theirs
    assert kept == theirs | {(one.organization_id, None) for one in (acme, other)}
