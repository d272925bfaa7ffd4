"""The page of requests: errors grouped with their explanations, and finding a single request."""

from __future__ import annotations

import re
import uuid

from heliograph.base.database.pool import Pool
from tests.hooks import until

from .conftest import Api, Browser, Tenant, make_person
from .test_messages import send

PHONE = "+258841234567"


def rows(text: str) -> list[str]:
    return re.findall(r'<tr id="r-([0-9a-f-]{36})">', text)


async def test_errors_are_grouped_explained_and_found(api: Api, pool: Pool, tenant: Tenant, owner: Browser) -> None:
    assert "No request in this period" in (await owner.get("/requests")).words
    message = await send(api, tenant)
    status, headers, _ = await api.ask("POST", "/contacts", json={"phone": "nonsense"}, headers=tenant.headers)
    assert status == 400
    for _ in range(2):
        await api.ask("POST", "/contacts", json={"name": "Ana", "phone": PHONE}, headers=tenant.headers)
    await owner.submit(await owner.get("/team/invite"), "/team/invite", email="rui@example.com", role="viewer")

    async def is_written() -> bool:
        return bool(await pool.fetchval("SELECT count(*) >= 4 FROM requests"))

    await until(is_written)
    page = await owner.get("/requests")
    assert len(rows(page.text)) == 5
    assert "A field is missing or wrong." in page.words
    assert "There is a contact with this number already. Change that contact, or delete it first." in page.words
    assert "5 requests, 2 refused, 0 failed on our side." in page.words
    assert "Someone" not in page.words
    assert "Ana on the dashboard" in page.words
    for query, count in (
        ("status=4xx", 2),
        ("code=validation_error", 1),
        ("operation=createContact", 3),
        ("path=/contacts", 3),
        ("path=/v1/contacts/", 3),
        ("path=https://api.example.com/v1/contacts?limit=1", 3),
        ("path=/contact", 0),
        ("path=/sms", 1),
        ("path=/v1", 5),
        ("path=//[", 0),
        # Parameter names in the code do not clash with those in an address.
        ("self=1&changes=2&limit=25", 5),
        (f"key={uuid.uuid4()}", 0),
        ("from=2020-01-01&to=2020-01-02", 0),
        ("limit=25", 5),
    ):
        assert len(rows((await owner.get(f"/requests?{query}")).text)) == count, query
    for query, said in (
        ("code=validation_errors", "There is no error code validation_errors. Did you mean validation_error?"),
        ("code=zzz", "There is no error code zzz."),
        ("operation=createContacts", "There is no operation createContacts. Did you mean createContact?"),
    ):
        none = await owner.get(f"/requests?{query}")
        assert (said in none.words, none.text.count('aria-invalid="true"'), rows(none.text)) == (True, 1, []), query
    assert '-wrong"' not in (await owner.get("/requests?code=not_found&operation=/team/invite")).text
    # New entries are counted above the rows while somebody reads, and are not inserted.
    first, second, *rest = rows(page.text)
    assert f'data-top="{first}"' in page.text
    region = await owner.get(f"/requests?top={second}", HX_Request="true")
    assert (rows(region.text), "1 newer" in region.words) == ([second, *rest], True)
    assert 'href="/requests" data-newer' in region.text
    for top in (first, uuid.UUID(int=2**128 - 1)):
        region = await owner.get(f"/requests?top={top}", HX_Request="true")
        assert (len(rows(region.text)), "newer" in region.words) == (5, False)
    assert "This is not the id of a key." in (await owner.get("/requests?key=x")).words
    assert "No request of the last 30 days has this id." in (await owner.get("/requests?q=nothing")).words

    # From the id that a program got, in one step.
    asked = headers["x-request-id"]
    for path in (f"/requests?q={asked}", f"/go/{asked}"):
        page = await owner.get(path)
        assert page.path.startswith("/requests/"), path
        assert "Correct the fields that the answer names." in page.words
        assert "••• (8)" in page.words
        assert "nonsense" not in page.words
    assert "curl -sS -X POST" in page.words
    row = await pool.fetchval("SELECT request_id FROM messages")
    assert (await owner.get(f"/go/{row}")).path == f"/messages/{message}"
    assert f'href="/messages/{message}"' in (await owner.get(f"/requests/{message}")).text
    assert (await owner.get(f"/requests/{uuid.uuid4()}")).status == 404
    file = await owner.get("/requests?csv=requests")
    assert "4xx" in file.text.splitlines()[0]

    # Beside the list, which stays filtered.
    id = page.path.rpartition("/")[2]
    page = await owner.get(f"/requests?status=4xx&open={id}")
    assert (len(rows(page.text.partition('id="panel"')[0])), "is-open" in page.text) == (2, True)
    assert asked in page.text.partition('id="panel"')[2]
    assert "<html" not in (await owner.get(f"/requests/{id}", HX_Request="true")).text
    for wrong in (uuid.uuid4(), "x"):
        assert (await owner.get(f"/requests?open={wrong}")).status == 404

    portuguese = await owner.get("/requests", Accept_Language="pt")
    assert "Um campo falta ou está errado." in portuguese.words
    assert rows((await owner.get("/requests?mode=test")).text) == []


async def test_the_page_of_an_error_leads_to_what_is_known_of_it(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    await make_person(pool, tenant, "rui@example.com", "sender")
    await other_browser.sign_in("rui@example.com")
    for browser, leads in ((owner, True), (other_browser, False)):
        page = await browser.post("/contacts", {"_token": "of another session", "name": "Ana", "phone": PHONE})
        assert page.status == 403
        link = f"/requests?q={page.headers['x-request-id']}"
        assert (f'href="{link}"' in page.text) is leads
        # Viewing pages is not logged.
        assert "/requests?q=" not in (await browser.get(f"/contacts/{uuid.uuid4()}")).text

    async def is_known() -> bool:
        return (await owner.get(link)).path.startswith("/requests/")

    await until(is_known)


async def test_what_only_pages_refuse_with_is_a_code_to_search_for(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    await make_person(pool, tenant, "rui@example.com", "viewer")
    await other_browser.sign_in("rui@example.com")
    token = (await other_browser.get("/account")).form("/account")["_token"]
    page = await other_browser.post("/team/invite", {"_token": token, "email": "eva@example.com", "role": "viewer"})
    assert page.status == 403

    async def is_written() -> bool:
        return bool(await pool.fetchval("SELECT count(*) > 0 FROM requests WHERE error_code = 'role_required'"))

    await until(is_written)
    page = await owner.get("/requests?code=role_required")
    assert (len(rows(page.text)), 'aria-invalid="true"' in page.text) == (1, False)
    status, _, found = await api.ask("GET", "/requests?errorCode=role_required", headers=tenant.headers)
    assert (status, [one["errorCode"] for one in found["items"]]) == (200, ["role_required"])


async def test_who_may_not_develop_sees_no_requests(pool: Pool, tenant: Tenant, browser: Browser) -> None:
    await make_person(pool, tenant, "rui@example.com", "sender")
    await browser.sign_in("rui@example.com")
    page = await browser.get("/requests")
    assert page.status == 403
    assert "Developer" in page.words


async def test_a_request_leads_to_what_it_was_about(api: Api, pool: Pool, tenant: Tenant, owner: Browser) -> None:
    body = {"name": "Ana", "phone": PHONE}
    status, headers, made = await api.ask("POST", "/contacts", json=body, headers=tenant.headers)
    assert status < 300, made
    contact = made["contact"]["id"]
    body = {"name": "Spring sale", "content": "Hello", "recipients": [PHONE]}
    status, started, begun = await api.ask("POST", "/campaigns", json=body, headers=tenant.headers)
    assert status < 300, begun
    status, changed, _ = await api.ask("PATCH", f"/contacts/{contact}", json={"name": "Eva"}, headers=tenant.headers)
    assert status == 200

    async def is_written() -> bool:
        return bool(await pool.fetchval("SELECT count(*) >= 3 FROM requests"))

    await until(is_written)
    for told, place in (
        (headers, f"/contacts/{contact}"),
        (started, f"/campaigns/{begun['campaign']['id']}"),
        (changed, f"/contacts/{contact}"),
    ):
        page = await owner.get(f"/requests?q={told['x-request-id']}")
        assert f'href="{place}"' in page.text, place
    await pool.execute("DELETE FROM contacts")
    for told in (headers, changed):
        assert "What it was about" not in (await owner.get(f"/requests?q={told['x-request-id']}")).words
