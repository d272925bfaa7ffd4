"""Every address of the console with every operator role: the server does what the table declares."""

from __future__ import annotations

import re
import uuid

import pytest

from heliograph.base.process.settings import Settings
from heliograph.console.table import ROUTES, TABLE
from heliograph.dashboard.table import ROUTES as DASHBOARD
from heliograph.pages.routes import Route
from heliograph.people.operators.roles import MONEY_CHANGE, PERMISSIONS, ROLES
from heliograph.people.roles import ROLES as MEMBERS
from heliograph.queue import holds as queue_holds
from heliograph.queue.holds import Selection
from heliograph.sms.accepting import sender_ids
from heliograph.sms.dispatch import suppliers
from tests.api.conftest import SECRET_KEY, Api, Tenant
from tests.pages.conftest import make_person
from tests.processes import until_true
from tests.rules import whatsapp_factories

from .conftest import PASSWORD, Browser, Pool, signed_in
from .test_messages import TEXT, sent

ENDS = ("/console/logout",)
#: Addresses that require the password again, besides those that change money: those that reveal texts and numbers,
#: create or end keys, people and organizations, erase data, take secrets or change where they are sent, or act as
#: somebody.
PROVED = re.compile(
    r"/(reveal|password|email|key|app|token|connection|view|erase|kept|close|prove|link|role)$"
    r"|/console/(organizations/\{id\}/)?settings$|/console/(whatsapp|lookups)/new$|/organizations$|/organizations/\{id\}/(keys|members/invite)$"
    r"|/(keys|members|operators)/\{\w+\}/(revoke|remove|resume|rotate)$|/invitations/\{invitation\}/renew$"
    r"|/(suppliers|lookups|accounts/\{organization\})/\{id\}/edit$"
    r"|/console/operators$|/account/passkeys(/\{id\}/remove)?$"
)


def path_of(route: Route) -> str:
    path = route.path.replace("{month}", "2026-01")
    return re.sub(r"\{\w+\}", lambda _: str(uuid.uuid4()), path)


def test_the_table_names_permissions_that_exist_and_stays_under_its_prefix() -> None:
    for route in ROUTES:
        assert route.path == "/console" or route.path.startswith("/console/"), route.path
        assert route.scope is None, route.path
        assert route.permission is None or route.permission in PERMISSIONS, route.path
        # Except for signing in and one's own account, nothing is open to everybody by default.
        assert route.is_public or route.is_personal or route.permission, route.path
    for role in ROLES.values():
        assert role.permissions <= PERMISSIONS
    assert not {route.path for route in ROUTES} & {route.path for route in DASHBOARD}


def test_dangerous_acts_ask_for_the_password_again() -> None:
    forms = {route.path: route for route in ROUTES if route.method == "POST" and not route.is_public}
    money = {path for path, one in forms.items() if one.permission == MONEY_CHANGE}
    wanted = money | {path for path in forms if PROVED.search(path)}
    assert {path for path, one in forms.items() if one.is_proved} == wanted


FORGET = "UPDATE operator_sessions SET proved_at = now() - interval '11 minutes'"
#: As if the clock had been set back since.
AHEAD = "UPDATE operator_sessions SET proved_at = now() + interval '3 days'"


@pytest.mark.parametrize("forget", [FORGET, AHEAD])
async def test_a_session_that_was_left_open_reveals_and_pays_nothing(
    pool: Pool, api: Api, tenant: Tenant, root: Browser, forget: str
) -> None:
    id = await sent(api, tenant)
    form = (await root.get(f"/console/messages/{id}")).form(f"/console/messages/{id}/reveal")
    quota = f"/console/organizations/{tenant.id}/quota"
    before = await pool.fetchval("SELECT total FROM quotas WHERE organization_id = $1", tenant.id)
    await pool.execute(forget)

    async def is_asked() -> bool:
        # A process caches a session for a second at most.
        return (await root.get("/console/organizations/new")).status == 403

    await until_true(is_asked)
    page = await root.post(f"/console/messages/{id}/reveal", form | {"reason": "ticket 1"})
    assert (page.status, TEXT in page.text, "ticket 1" in page.text) == (403, False, True), page.words
    assert (await root.post(quota, form | {"messages": "5", "do": "grant", "reason": "x"})).status == 403
    assert await pool.fetchval("SELECT total FROM quotas WHERE organization_id = $1", tenant.id) == before
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'message.revealed'") == 0
    wrong = await root.submit(page, f"/console/messages/{id}/reveal", _password="not it, and long enough")
    assert (wrong.status, TEXT in wrong.text) == (422, False)
    # The input is still there, so the page is shown once the password is right.
    page = await root.submit(wrong, f"/console/messages/{id}/reveal", _password=PASSWORD)
    assert TEXT in page.words


@pytest.mark.parametrize("role", ROLES)
async def test_every_route_with_every_role(pool: Pool, browser: Browser, role: str) -> None:
    await signed_in(pool, browser, role)
    token = (await browser.get("/console/account")).form("/console/logout")["_token"]
    for route in ROUTES:
        if route.path in ENDS:
            continue
        path = path_of(route)
        page = await (browser.get(path) if route.method == "GET" else browser.post(path, {"_token": token}))
        may = route.permission is None or route.permission in ROLES[role].permissions
        assert page.status < 500, (route.path, page.words)
        assert (page.status == 403) != may, (route.method, route.path, page.words)


@pytest.mark.parametrize("role", ROLES)
async def test_the_rail_leads_nowhere_that_is_not_allowed(pool: Pool, browser: Browser, role: str) -> None:
    await signed_in(pool, browser, role)
    page = await browser.get("/console")
    assert page.status == 200, page.words
    nav = page.text[page.text.index('<div class="groups">') :].partition("</nav>")[0]
    for part in nav.split('<li><a href="')[1:]:
        assert (await browser.get(part.partition('"')[0])).status == 200, part[:40]


@pytest.mark.parametrize("role", ROLES)
async def test_no_page_leads_to_what_its_reader_may_not_open(
    pool: Pool, api: Api, tenant: Tenant, browser: Browser, role: str
) -> None:
    """Nor does it have forms for what they may not do."""
    message = await sent(api, tenant)
    await whatsapp_factories.made(pool)
    account = await pool.fetchrow("SELECT organization_id, id FROM whatsapp_accounts")
    key = suppliers.seal_key(Settings(secret_key=SECRET_KEY))
    async with pool.acquire() as conn:
        smpp = {"host": "127.0.0.1", "port": 2775, "system_id": "a"}
        supplier = await suppliers.add(conn, key, name="main", kind="smpp", settings=smpp, secret="s")
        await conn.execute("UPDATE suppliers SET state = 'paused'")
        await sender_ids.request(conn, tenant.actor, value="PADARIA")
        await queue_holds.hold(conn, Selection(organization_id=tenant.id, line=supplier), reason="")
    await signed_in(pool, browser, role)
    one = f"/console/organizations/{tenant.id}"
    tabs = [route.path for route in ROUTES if re.fullmatch(r"/console/organizations/\{id\}(/[a-z]+)?", route.path)]
    pages = [route.path for route in ROUTES if route.method == "GET" and "{" not in route.path and not route.is_public]
    pages += [path.replace("/console/organizations/{id}", one) for path in tabs]
    pages += [f"/console/messages/{message}", f"/console/suppliers/{supplier}"]
    pages.append(f"/console/whatsapp/accounts/{account['organization_id']}/{account['id']}")
    wrong, looked_at = set(), 0
    for path in pages:
        page = await browser.get(path)
        links = [("GET", found) for found in re.findall(r'href="(/console[^"?#]*)', page.text)]
        links += [("POST", found) for found in re.findall(r'method="post" action="(/console[^"?#]*)', page.text)]
        for method, found in links:
            looked_at += 1
            route = TABLE.find(found)[0].get(method)
            may = route is not None and (route.permission or "now") in {*ROLES[role].permissions, "now"}
            # A refused page links back.
            wrong |= set() if may or page.status == 403 else {(path, method, found)}
    assert looked_at > 500
    assert wrong == set()


@pytest.mark.parametrize("role", [None, *MEMBERS])
async def test_no_member_of_an_organization_gets_in(
    pool: Pool, tenant: Tenant, browser: Browser, role: str | None
) -> None:
    token = ""
    if role is not None:
        await make_person(pool, tenant, "someone@example.com", role)
        await browser.sign_in("someone@example.com")
        token = (await browser.get("/account")).form("/account")["_token"]
    for route in ROUTES:
        if route.is_public:
            continue
        path = path_of(route)
        if route.method == "GET":
            assert (await browser.get(path)).path.startswith("/console/login?next="), path
        else:
            assert (await browser.post(path, {"_token": token})).status == 403, path
