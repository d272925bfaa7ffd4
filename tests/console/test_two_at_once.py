"""Two people have the same form open: a field that one of them left unchanged does not undo the other's change."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.accounts import (
    installation,
    organizations,
    plans,
    quota,
    rate_limits,
    send_defaults,
    spending,
)
from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.guard import rules
from heliograph.pages.forms import leaving
from heliograph.simulators.graph.simulator import GraphSimulator
from heliograph.sms import refunds
from tests.api.conftest import Tenant
from tests.meanwhile import before, in_this_loop

from . import test_lookups, test_routing, test_suppliers
from .conftest import Browser
from .test_whatsapp import connected, graph

__all__ = ["graph"]


async def both(root: Browser, path: str, first: dict[str, str], then: dict[str, str], said: str = "") -> Any:
    """Both opened the form before either sent it. `said`: a text on the page between a form and saving, if there is
    one. Returns the later person's page, before they saved."""
    forms = [await root.get(path) for _ in range(2)]
    page = await root.submit(forms[0], path, **first)
    if said:
        assert said in page.words, page.words
        page = await root.submit(page, path, do="save")
    assert page.status == 200, page.words
    page = await root.submit(forms[1], path, **then)
    if said:
        await root.submit(page, path, do="save")
    return page


def test_what_is_left_is_as_it_was_shown() -> None:
    form = {
        "a": " 1\r\n2 ",
        "b": "x",
        "d": "",
        leaving.WAS: leaving.written({"a": "1\n2", "b": "y", "c": "", "d": "z"}),
    }
    assert leaving.unchanged_fields(form) == {"a", "c"}
    assert leaving.current_values(form, {"a": "3", "b": "4"}) == {"a": "3"}


@pytest.mark.parametrize("was", ["", "[]", '{"a": 1}', "{"])
def test_a_form_that_brings_nothing_along_has_typed_all(was: str) -> None:
    assert leaving.unchanged_fields({"a": "1", leaving.WAS: was}) == frozenset()
    assert leaving.unchanged_fields({"a": "1"}) == frozenset()


async def test_of_a_supplier(pool: Pool, root: Browser, settings: Settings) -> None:
    id = await test_suppliers.add(pool, settings)
    path = f"/console/suppliers/{id}/edit"
    page = await both(
        root, path, {"priority": "5", "option.window": "20"}, {"weight": "7"}, said="Workers apply changes"
    )
    assert "1 setting changes" in page.words
    one = await test_suppliers.row(pool, id)
    assert (one.priority, one.weight, one.settings["window"]) == (5, 7, 20)
    # The same field: the difference shows the present value.
    page = await both(root, path, {"weight": "3"}, {"weight": "4"}, said="Workers apply changes")
    assert "weight 3 4" in page.words
    # Saving a difference that no longer applies continues from the present state.
    forms = [await root.submit(await root.get(path), path, **{name: "9"}) for name in ("priority", "weight")]
    await root.submit(forms[0], path, do="save")
    page = await root.submit(forms[1], path, do="save")
    assert "in the meantime" in page.words
    page = await root.submit(page, path)
    assert "1 setting changes" in page.words
    await root.submit(page, path, do="save")
    one = await test_suppliers.row(pool, id)
    assert (one.priority, one.weight) == (9, 9)


async def test_of_a_route(pool: Pool, root: Browser, settings: Settings) -> None:
    main, backup = [await test_routing.add(pool, settings, name) for name in ("main", "backup")]
    await test_routing.added(root, **test_routing.at(main, 10))
    path = f"/console/routes/{(await test_routing.stored(pool)).route.id}/edit"
    await both(root, path, test_routing.at(backup, 20), {"note": "mine"}, said="Before it is saved")
    one = await test_routing.stored(pool)
    assert one.note == "mine"
    assert {(choice.supplier_id, choice.priority) for choice in one.route.choices} == {(main, 10), (backup, 20)}


async def test_of_a_look_up_supplier(pool: Pool, root: Browser) -> None:
    await test_lookups.added(root, base_url="http://127.0.0.1:1")
    path = f"/console/lookups/{(await test_lookups.account(pool)).id}/edit"
    await both(root, path, {"reuses": "1"}, {"countries": "AO"})
    one = await test_lookups.account(pool)
    assert (one.values["reuses"], one.values["countries"]) == (1, ["AO"])


async def test_of_an_account_at_meta(pool: Pool, tenant: Tenant, root: Browser, graph: GraphSimulator) -> None:
    path = f"{(await connected(root, graph)).path}/edit"
    await both(root, path, {"name": "Loja"}, {"api_version": "v26.0"}, said="changes")
    kept = await pool.fetchrow("SELECT name, api_version FROM whatsapp_accounts")
    assert tuple(kept) == ("Loja", "v26.0")


async def test_of_an_organization(pool: Pool, tenant: Tenant, root: Browser) -> None:
    path = f"/console/organizations/{tenant.id}/settings"
    await both(root, path, {"opt_out_words": "FORA", "factor_required": "yes"}, {"session_hours": "8"})
    async with pool.acquire() as conn:
        one = await organizations.get(conn, id=tenant.id)
    assert (one.opt_out_words, one.factor_required, one.session_hours) == (["FORA"], True, 8)


async def test_of_the_installation(pool: Pool, root: Browser) -> None:
    path = "/console/settings"
    await both(root, path, {"announcement": "Slow to Angola", "four_eyes": "true"}, {"new_quota": "500"})
    async with pool.acquire() as conn:
        known = await installation.load(conn)
    assert (known.announcement, known.four_eyes, known.new_quota) == ("Slow to Angola", True, 500)
    # Refused, and sent again: unchanged fields are still unchanged.
    form = await root.get(path)
    await root.submit(await root.get(path), path, announcement="Well again")
    wrong = await root.submit(form, path, new_quota="many")
    assert wrong.status == 422
    await root.submit(wrong, path, new_quota="600")
    async with pool.acquire() as conn:
        known = await installation.load(conn)
    assert (known.announcement, known.new_quota) == ("Well again", 600)


async def test_of_the_guards_rules(pool: Pool, tenant: Tenant, root: Browser) -> None:
    path = f"/console/guard/rules/{tenant.id}"
    await both(root, path, {"policy": "refuse", "safe": "25884000"}, {"event": "3", "limit_otp": "500"})
    async with pool.acquire() as conn:
        known = await rules.rules_of(conn, tenant.id)
    assert (known.policy, known.safe, known.limits) == ("refuse", ["25884000"], {"otp": 500})
    # An event that somebody ended is not announced again by somebody who left it as announced.
    await both(root, path, {"event": ""}, {"safe": "25885000"})
    async with pool.acquire() as conn:
        known = await rules.rules_of(conn, tenant.id)
    assert (known.safe, known.event_until) == (["25885000"], None)


async def test_of_an_organizations_limits(pool: Pool, tenant: Tenant, root: Browser) -> None:
    here = f"/console/organizations/{tenant.id}"
    for group, first, then in (
        ("spending", {"segments": "2000"}, {"above": "500"}),
        ("countries", {"allowed": "MZ ZA"}, {"country": "MZ"}),
        ("kept", {"text_days": "7"}, {"message_days": "60"}),
        ("rates", {"reads": "500"}, {"sms_send": "900"}),
        ("plan", {"plan": "gold", "allowance": "5000"}, {"plan": "silver", "months": "3"}),
    ):
        forms = [await root.get(f"{here}/limits") for _ in range(2)]
        for form, typed in zip(forms, (first, then), strict=True):
            page = await root.submit(form, f"{here}/{group}", **typed)
            assert page.status == 200, (group, page.words)
    async with pool.acquire() as conn:
        one = await organizations.get(conn, id=tenant.id)
        kept = await send_defaults.get(conn, organization_id=tenant.id)
        own = await rate_limits.get(conn, organization_id=tenant.id)
        (limit,) = await spending.limits(conn, tenant.id)
        assert (limit.segments, await quota.alert(conn, tenant.id)) == (2_000, 500)
        assert await plans.terms(conn, tenant.id) == plans.Terms("silver", 5_000, 3)
    assert (one.country, one.allowed_countries) == ("MZ", ["MZ", "ZA"])
    assert (kept.text_days, kept.message_days, own.reads, own.sms_send) == (7, 60, 500, 900)


async def test_an_older_page_lifts_no_suspension(pool: Pool, tenant: Tenant, root: Browser) -> None:
    here = f"/console/organizations/{tenant.id}"
    form = await root.get(f"{here}/limits")
    for state in ("suspended", "closed"):
        async with pool.acquire() as conn:
            await organizations.set_state(conn, id=tenant.id, state=state)
        page = await root.submit(form, f"{here}/state", state="trial")
        assert (page.status, "suspended or closed in the meantime" in page.words) == (422, True)
        assert await pool.fetchval("SELECT state FROM organizations WHERE id = $1", tenant.id) == state


async def test_an_older_page_opens_nothing_that_was_closed(pool: Pool, tenant: Tenant, root: Browser) -> None:
    path = f"/console/organizations/{tenant.id}/suspend"
    form = await root.get(path)
    async with pool.acquire() as conn:
        await organizations.set_state(conn, id=tenant.id, state="closed")
    page = await root.submit(form, path, reason="abuse")
    assert (page.status, "It was closed in the meantime." in page.words) == (422, True)
    assert await pool.fetchval("SELECT state FROM organizations WHERE id = $1", tenant.id) == "closed"


async def test_a_page_of_a_suspended_organization_reopens_none_that_was_closed(
    pool: Pool, tenant: Tenant, root: Browser
) -> None:
    here = f"/console/organizations/{tenant.id}"
    async with pool.acquire() as conn:
        await organizations.set_state(conn, id=tenant.id, state="suspended")
        form = await root.get(here)
        await organizations.set_state(conn, id=tenant.id, state="closed")
    page = await root.submit(form, f"{here}/resume")
    assert "It was closed in the meantime." in page.words, page.words
    assert await pool.fetchval("SELECT state FROM organizations WHERE id = $1", tenant.id) == "closed"
    # Whoever sees that it is closed can reopen it.
    page = await root.submit(page, f"{here}/resume")
    assert "It is resumed." in page.words, page.words


async def test_what_is_closed_while_a_form_is_submitted_stays_closed(
    pool: Pool, tenant: Tenant, root: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner closes it just after the form was found to be fine."""

    async def close() -> None:
        async with pool.acquire() as conn:
            await organizations.set_state(conn, id=tenant.id, state="closed")

    here = f"/console/organizations/{tenant.id}"
    for path, action, typed in (
        ("/suspend", "/suspend", {"reason": "abuse"}),
        ("/limits", "/state", {"state": "trial"}),
    ):
        await pool.execute("UPDATE organizations SET state = 'active'")
        form = await root.get(f"{here}{path}")
        before(monkeypatch, organizations, "set_state", in_this_loop(close))
        page = await root.submit(form, f"{here}{action}", **typed)
        assert (page.status, "closed in the meantime" in page.words) == (422, True), action
        assert await pool.fetchval("SELECT state FROM organizations WHERE id = $1", tenant.id) == "closed", action


async def test_of_what_is_refunded(pool: Pool, root: Browser) -> None:
    await both(root, "/console/refunds", {"class_failed": "yes"}, {"class_expired": "yes"})
    async with pool.acquire() as conn:
        policy = await refunds.policy(conn)
    assert {name for name, is_refunded in policy.items() if is_refunded} == {"unsent", "failed", "expired"}
