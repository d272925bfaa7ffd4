"""Registrations of senders: entered by operators, read by organizations."""

from __future__ import annotations

import re
from uuid import UUID

from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.senders import registrations
from heliograph.sms.accepting import sender_ids
from tests.api.conftest import Tenant

from .conftest import Browser
from .test_suppliers import add, audit_entries

HERE = "/console/routes/registrations"


async def test_a_registration_is_said_listed_and_changed(
    pool: Pool, root: Browser, tenant: Tenant, settings: Settings
) -> None:
    main = await add(pool, settings)
    async with pool.acquire() as conn:
        sender = await sender_ids.request(conn, tenant.actor, value="PADARIA")
    form = await root.get(HERE)
    assert "No registration yet" in form.words
    typed = {"organization": str(tenant.id), "sender": "padaria", "country": "mz", "state": "pending"}
    page = await root.submit(form, HERE, **typed, supplier=str(main), note="sent on Monday")
    assert page.status == 200, page.words
    assert "sent on Monday" in page.words
    async with pool.acquire() as conn:
        (one,) = await registrations.everywhere(conn, organization_id=tenant.id)
    assert (one.sender, one.country, one.supplier, one.state) == ("PADARIA", "MZ", "main", "pending")
    assert [entry[:2] for entry in await audit_entries(pool, sender.id)][-1] == ("sender_id.registered", "operator")
    # A line's link fills in the form.
    (link,) = [part for part in page.text.split('"') if part.startswith(f"{HERE}?") and "#register" in part]
    form = await root.get(link.replace("&amp;", "&").partition("#")[0])
    page = await root.submit(form, HERE, state="registered")
    async with pool.acquire() as conn:
        (one,) = await registrations.everywhere(conn, organization_id=tenant.id)
    assert (one.state, one.note) == ("registered", "sent on Monday")
    assert "The zeros of" not in page.words
    page = await root.submit(await root.get(HERE), HERE, **typed, network="643-98")
    assert "Recorded: PADARIA, Being registered. The zeros of 643-98 cannot be checked" in page.words, page.words
    assert "PADARIA" not in (await root.get(f"{HERE}?organization=Nobody")).words


async def test_refusals_stand_at_their_fields(pool: Pool, root: Browser, tenant: Tenant) -> None:
    async with pool.acquire() as conn:
        await sender_ids.request(conn, tenant.actor, value="PADARIA")
    form = await root.get(HERE)
    good = {"organization": str(tenant.id), "sender": "PADARIA", "country": "MZ", "state": "asked"}
    for typed, field in (
        ({"organization": "Nobody"}, "organization"),
        ({"sender": "OTHER"}, "sender"),
        ({"country": "Mozambique"}, "country"),
        ({"network": "643"}, "network"),
        ({"state": "perhaps"}, "state"),
        ({"supplier": str(UUID(int=7))}, "supplier"),
        ({"note": "x" * 501}, "note"),
    ):
        page = await root.submit(form, HERE, **good | typed)
        assert page.status == 422, typed
        assert f'href="#{field}"' in page.text, (typed, page.words)
    everything = good | {"organization": "Nobody", "country": "", "network": "643", "supplier": "x", "note": "x" * 501}
    page = await root.submit(form, HERE, **everything | {"state": "perhaps"})
    fields = re.findall(r'href="#(\w+)"', page.text)
    assert {"organization", "country", "network", "supplier", "note", "state"} <= set(fields), page.words
    for network, said in (("643", "such as 643-04 or 334-020"), ("643-4", "did you mean 643-04?")):
        page = await root.submit(form, HERE, **good | {"network": network})
        assert said in page.words, page.words
    async with pool.acquire() as conn:
        assert await registrations.everywhere(conn, organization_id=tenant.id) == []
