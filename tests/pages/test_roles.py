"""Every route with every role: the server does what the table declares."""

from __future__ import annotations

import uuid

import pytest

from heliograph.accounts.api_keys.scopes import SCOPES
from heliograph.base.database.pool import Pool
from heliograph.dashboard.table import ROUTES
from heliograph.pages.routes import Route
from heliograph.people.roles import PERMISSIONS, ROLES

from .conftest import Browser, Tenant, make_person


def allowed(route: Route, role: str, mode: str) -> bool:
    held = ROLES[role]
    if route.is_public or route.is_personal:
        return True
    mode = "live" if route.is_shared else mode
    return (route.scope is None or route.scope in held.scopes(mode)) and (
        route.permission is None or route.permission in held.permissions
    )


def test_the_table_names_scopes_and_permissions_that_exist() -> None:
    for route in ROUTES:
        assert route.scope is None or route.scope in SCOPES, route.path
        assert route.permission is None or route.permission in PERMISSIONS, route.path
        # Nothing of an organization is open to everybody by default.
        if not route.is_public and not route.is_personal:
            assert route.scope or route.permission, route.path
    for role in ROLES.values():
        assert role.live <= role.test, "what is allowed for live things is allowed for test things"
        assert role.permissions <= PERMISSIONS


@pytest.mark.parametrize("role", ROLES)
async def test_every_route_with_every_role(pool: Pool, tenant: Tenant, browser: Browser, role: str) -> None:
    await make_person(pool, tenant, "someone@example.com", role)
    await browser.sign_in("someone@example.com")
    token = (await browser.get("/account")).form("/account")["_token"]
    for route in ROUTES:
        if route.path == "/logout":
            continue
        path = route.path.replace("{id}", str(uuid.uuid4())).replace("{anything}", "order-1")
        for mode in ("live", "test"):
            where = f"{path}?mode={mode}"
            page = await (browser.get(where) if route.method == "GET" else browser.post(where, {"_token": token}))
            assert page.status < 500, (route.path, page.words)
            assert (page.status == 403) != allowed(route, role, mode), (route.method, route.path, mode, page.words)


@pytest.mark.parametrize("role", ROLES)
async def test_the_rail_leads_nowhere_that_is_not_allowed(
    pool: Pool, tenant: Tenant, browser: Browser, role: str
) -> None:
    await make_person(pool, tenant, "someone@example.com", role)
    page = await browser.sign_in("someone@example.com")
    nav = page.text[page.text.index('<div class="groups">') :].partition("</nav>")[0]
    places = [part.partition('"')[0] for part in nav.split('<li><a href="')[1:]]
    assert places[0] == "/"
    for place in places:
        assert (await browser.get(place)).status == 200, place


async def test_nobody_gets_nowhere(browser: Browser) -> None:
    for route in ROUTES:
        path = route.path.replace("{id}", str(uuid.uuid4()))
        page = await (browser.get(path) if route.method == "GET" else browser.post(path, {}))
        if route.is_public:
            assert page.status < 500, route.path
        elif route.method == "GET":
            assert page.path.startswith("/login?next="), route.path
        else:
            assert page.status == 403, route.path
