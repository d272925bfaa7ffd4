"""Whatever is in an address or a form of the console: it is refused or shown as text, and never causes an unexpected
error; and tricks with paths, headers and methods open nothing."""

from __future__ import annotations

import asyncio
import re
import urllib.parse
import uuid
from collections.abc import Iterable

import pyotp

from heliograph.base.database.pool import Pool
from heliograph.console.table import ROUTES
from heliograph.overview.installation import notes
from heliograph.pages.routes import Route
from heliograph.people import invitations
from heliograph.sms.accepting import sender_ids
from tests.api.conftest import Tenant, make_tenant
from tests.pages.conftest import make_person
from tests.ports import held_port

from .conftest import PASSWORD, Browser, make_operator, running, set_up, signed_in

SCRIPT = '"><img src=/evil onerror=evil()><script>evil()</script>{{7*7}}'
#: In place of an id, quoted for an address.
IDS = ("x", "..%2f..%2fetc", "%00", "%22%3E%3Cscript%3E", "0" * 36, "%D9%A1" * 4, "a" * 2000, "%ff%fe", "1'--")
#: Longer than most fields may be. A hundred fields of it are less than a form may have, so that they are all read.
LONG = "x" * 500
#: In every field of a form.
VALUES = (
    *(SCRIPT, "\u202egnp.exe", "=HYPERLINK(1)", LONG, "\x00", "-1", "9" * 40, "NaN", "%s%n", "\U0001f600"),
    *("", "1", "2026-02-30", "9999-12-31T23:59:59Z", "999999d"),
)
#: Names of fields in the console's forms.
FIELD = re.compile(r'name="([a-z][\w.]*)"')
ENDS = ("/console/logout", "/console/account/sessions/end")


def filled(route: Route, value: str) -> str:
    return re.sub(r"\{\w+\}", lambda _: value, route.path)


def inert(text: str) -> bool:
    return not re.search(r"<img src=/evil|<script>", text)


async def names(browser: Browser, paths: Iterable[str]) -> list[str]:
    """All field names of these pages."""
    found: set[str] = set()
    for path in paths:
        found |= set(FIELD.findall((await browser.get(path)).text))
    return sorted(found - {"_token", "_once"})


async def test_whatever_stands_for_an_id_is_not_found(root: Browser) -> None:
    token = (await root.get("/console/account")).form("/console/logout")["_token"]
    for route in (one for one in ROUTES if "{" in one.path):
        for id in IDS:
            path = filled(route, id)
            page = await (root.get(path) if route.method == "GET" else root.post(path, {"_token": token}))
            assert 300 <= page.status < 500 or page.path != path, (route.path, id, page.words)
            assert inert(page.text), (route.path, id)


async def test_whatever_stands_in_a_query_is_text(root: Browser) -> None:
    asked = [one for one in ROUTES if one.method == "GET" and "{" not in one.path]
    known = await names(root, [one.path for one in asked])
    assert len(known) > 50
    for value in VALUES:
        query = urllib.parse.urlencode(dict.fromkeys((*known, "q", "next", "mode", "after", "before", "csv"), value))
        for route in asked:
            page = await root.get(f"{route.path}?{query}")
            assert page.status < 500, (route.path, value[:20], page.words[:300])
            assert inert(page.text), (route.path, value[:20])


async def test_whatever_is_typed_into_a_form_is_refused_or_text(tenant: Tenant, pool: Pool, root: Browser) -> None:
    pages = [one.path for one in ROUTES if one.method == "GET" and "{" not in one.path]
    one = f"/console/organizations/{tenant.id}"
    known = await names(root, [*pages, one, *(f"{one}/{tab}" for tab in ("limits", "keys", "notes", "view", "erase"))])
    token = (await root.get("/console/account")).form("/console/logout")["_token"]
    forms = [one for one in ROUTES if one.method == "POST" and not one.is_public and one.path not in ENDS]
    for value in VALUES:
        for route in forms:
            path = filled(route, str(tenant.id))
            fields = dict.fromkeys(known, value) | {"_token": token}
            page = await root.post(path, fields)
            assert page.status < 500, (route.path, value[:20], page.words[:300])
            assert page.status != 413, "nobody has looked at what was typed"
            # A file is downloaded and not shown, and names people in their own words.
            is_file = page.headers.get("content-disposition", "").startswith("attachment")
            assert is_file or inert(page.text), (route.path, value[:20])


async def raw(
    base_url: str, target: str, *, method: str = "GET", body: str = "", **headers: str
) -> tuple[int, str, str]:
    """(status, location, body) of a request exactly as written here: clients would normalize it."""
    at = urllib.parse.urlsplit(base_url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    try:
        given = {"Host": at.netloc, "Accept": "text/html", "Connection": "close"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        given |= {"Content-Length": str(len(body))} if body else {}
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items()), "", body]
        writer.write("\r\n".join(lines).encode("latin-1"))
        answer = (await reader.read()).decode("latin-1")
    finally:
        writer.close()
    head, _, rest = answer.partition("\r\n\r\n")
    location = re.search(r"^location: (.*)$", head, re.IGNORECASE | re.MULTILINE)
    return int(head.split(" ")[1]), location[1].strip() if location else "", rest


def spellings(path: str) -> tuple[str, ...]:
    rest = path.removeprefix("/console")
    return (
        *(f"/{path}", f"/console/{rest}", f"/console/.{rest}", f"/console/../console{rest}", f"/CONSOLE{rest}"),
        *(f"{path}/", f"{path};x=1", f"/console%2f{rest[1:]}", f"/%63onsole{rest}", f"{path}%00", f"{path}%20"),
        *(f"/assets/..{path}", f"/v1/..{path}", f"/login/..{path}", f"/./console{rest}", f"\\console{rest}"),
        *(f"/{path}/..", f"http://127.0.0.1{path}", f"{path}?", f"{path}#x", f"/console{rest}/%2e%2e{rest}"),
    )


#: Of the wall, which every operator sees and nobody else.
WALL = "data-wall"


async def test_no_spelling_of_an_address_and_no_header_opens_it(pool: Pool, tenant: Tenant, browser: Browser) -> None:
    await make_person(pool, tenant, "ana@example.com")
    await browser.sign_in("ana@example.com")
    (cookie,) = (one.value for one in browser.session.cookie_jar if one.key == "hg")
    tricks: tuple[dict[str, str], ...] = (
        {},
        {"Cookie": f"hg={cookie}; hgc={cookie}; __Host-hgc={cookie}; __Host-hg={cookie}"},
        {"Cookie": f"hg={cookie}", "Host": "console.example.com"},
        {"Cookie": f"hg={cookie}", "X_Original_URL": "/console/now", "X_Rewrite_URL": "/console/now"},
        {"Cookie": f"hg={cookie}", "X_Forwarded_For": "127.0.0.1", "Forwarded": "for=127.0.0.1;host=localhost"},
        {"Cookie": f"hgc={cookie}", "Authorization": f"Bearer {tenant.secret}", "HX_Request": "true"},
        {"Cookie": "hgc=" + "x" * 4000},
    )
    for target in ("/console/now", *spellings("/console/now"), "/", "/messages"):
        for headers in tricks:
            status, location, body = await raw(browser.base_url, target, **headers)
            assert status < 500, (target, headers)
            assert WALL not in body, (target, headers)
            assert not re.match("//|[a-z]+:", location), (target, location)
    for method in ("HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "QUERY", "get"):
        for override in ({}, {"X_HTTP_Method_Override": "GET"}):
            status, location, body = await raw(browser.base_url, "/console/now", method=method, **override)
            assert status < 500, method
            assert WALL not in body, method


async def test_an_address_of_its_own_is_nowhere_else(database_url: str, pool: Pool) -> None:
    with held_port() as port:
        async with running(database_url, console_listen=f"127.0.0.1:{port}") as api:
            there = Browser(f"http://127.0.0.1:{port}")
            try:
                await signed_in(pool, there)
                (cookie,) = (one.value for one in there.session.cookie_jar if one.key == "hgc")
                headers = {"Cookie": f"hgc={cookie}", "Host": f"127.0.0.1:{port}"}
                assert WALL in (await raw(there.base_url, "/console/now", **headers))[2]
                for target in ("/console/now", *spellings("/console/now")):
                    # Nor with an operator's session and the console's host name.
                    status, _, body = await raw(api.base_url, target, **headers)
                    assert (status in (303, 400, 404, 405), WALL in body) == (True, False), (target, status)
            finally:
                await there.session.close()


async def test_no_form_is_taken_that_another_page_sent(pool: Pool, root: Browser, other_browser: Browser) -> None:
    await signed_in(pool, other_browser, "root", "olga@example.com")
    token, theirs = [
        (await one.get("/console/account")).form("/console/logout")["_token"] for one in (root, other_browser)
    ]
    form = {"Content_Type": "application/x-www-form-urlencoded", "Cookie": cookies(root)}
    own = {"Origin": root.base_url, "Sec_Fetch_Site": "same-origin"}
    tricks: tuple[tuple[str, dict[str, str]], ...] = (
        (token, {}),
        (token, {"Origin": "null"}),
        (token, {"Origin": "https://evil.example"}),
        (token, {"Origin": root.base_url + ".evil.example"}),
        (token, {"Origin": root.base_url.replace("//", "//evil@")}),
        (token, {"Referer": root.base_url, "Sec_Fetch_Site": "none"}),
        *((token, own | {"Sec_Fetch_Site": site}) for site in ("same-site", "cross-site", "none", "")),
        ("", own),
        (theirs, own),
        (token[:-2], own),
    )
    before = await pool.fetchval("SELECT count(*) FROM audit_log")
    for route in (one for one in ROUTES if one.method == "POST" and not one.takes_file):
        for given, headers in tricks:
            body = urllib.parse.urlencode({"_token": given, "reason": "x"} if given else {"reason": "x"})
            if route.is_public and headers == own:
                continue  # nobody is signed in there, so no form belongs to anybody
            path = filled(route, str(uuid.uuid4()))
            status, _, _ = await raw(root.base_url, path, method="POST", body=body, **form | headers)
            assert status == 403, (route.path, headers, status)
    assert await pool.fetchval("SELECT count(*) FROM audit_log") == before
    assert (await root.get("/console/now")).status == 200


async def test_what_is_one_organizations_is_not_found_below_another(pool: Pool, tenant: Tenant, root: Browser) -> None:
    other = await make_tenant(pool)
    here, there = (f"/console/organizations/{one.id}" for one in (tenant, other))
    async with pool.acquire() as conn:
        sender = (await sender_ids.request(conn, tenant.actor, value="PADARIA")).id
        note = (await notes.add(conn, organization_id=tenant.id, body="Pays late")).id
        await invitations.invite(conn, tenant.actor, email="rui@example.com", role="viewer")
        invitation = await conn.fetchval("SELECT id FROM invitations")
    token = (await root.get("/console/account")).form("/console/logout")["_token"]
    before = await pool.fetchval("SELECT count(*) FROM audit_log")
    paths = [
        *(f"/keys/{tenant.key_id}/{what}" for what in ("suspend", "resume", "revoke", "rename", "rotate")),
        *(f"/senders/{sender}/{what}" for what in ("suspend", "approve", "default")),
        f"/invitations/{invitation}/renew",
    ]
    approvals = [f"/console/approvals/{other.id}/{sender}/{what}" for what in ("approve", "reject", "ask")]
    for path in (*(there + one for one in paths), *approvals):
        page = await root.post(path, {"_token": token, "_once": uuid.uuid4().hex, "reason": "x", "question": "x"})
        assert page.status == 404, (path, page.status, page.words)
    # Ending something that does not exist is no error, and ends nothing.
    for path in (f"/invitations/{invitation}/withdraw", f"/notes/{note}/remove"):
        assert (await root.post(there + path, {"_token": token})).status == 200
    assert await pool.fetchval("SELECT count(*) FROM organization_notes") == 1
    assert await pool.fetchval("SELECT count(*) FROM invitations") == 1
    assert await pool.fetchval("SELECT count(*) FROM audit_log") == before
    # Under its own address it exists.
    assert (await root.post(f"{here}/notes/{note}/remove", {"_token": token})).path == f"{here}/notes"


async def test_where_one_comes_back_to_is_never_elsewhere(pool: Pool, root: Browser, other_browser: Browser) -> None:
    outside = ("//evil.example", "/\\evil.example", "https://evil.example", "javascript:evil()", "/\t/evil", "@evil")
    for value in outside:
        quoted = urllib.parse.quote(value, safe="")
        for path in (f"/console/go?q={quoted}", f"/console/login?next={quoted}", f"/console/palette?q={quoted}"):
            _, location, body = await raw(root.base_url, path, Cookie=cookies(root))
            assert not re.match(r"(?i)\s*(//|/\\|[a-z]+:)", location), (path, location)
            assert f'href="{value}"' not in body, path
        # Through the sign-in itself, the code included.
    user, token = await make_operator(pool, "olga@example.com")
    secret = await set_up(other_browser, token)
    for value in outside:
        await other_browser.submit(await other_browser.get("/console/account"), "/console/logout")
        page = await other_browser.get("/console/login?next=" + urllib.parse.quote(value, safe=""))
        page = await other_browser.submit(page, "/console/login", email="olga@example.com", password=PASSWORD)
        await pool.execute("UPDATE users SET totp_step = 0 WHERE id = $1", user.id)
        page = await other_browser.submit(page, "/console/login/code", code=pyotp.TOTP(secret).now())
        assert (page.status, page.path.startswith("/console/")) == (200, True), (value, page.path, page.words)


def cookies(browser: Browser) -> str:
    return "; ".join(f"{one.key}={one.value}" for one in browser.session.cookie_jar)
