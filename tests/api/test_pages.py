"""Pages for people: the front page, one for each error, and the guide. And what leads to them: `docsUrl`."""

from __future__ import annotations

import asyncio
import html
import re
from urllib.parse import urldefrag, urljoin

import pytest

from heliograph.api.document import pages
from heliograph.api.document.docs import POLICY
from heliograph.pages.application import POLICY as PAGES_POLICY

from .conftest import Api, Tenant, running

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


async def fetched(api: Api, path: str) -> str:
    """A page, which must be there, be HTML, and keep to its policy."""
    async with api.session.get(api.base_url + path, headers={"Accept": BROWSER}) as answer:
        assert (answer.status, answer.content_type) == (200, "text/html"), path
        assert answer.headers["content-security-policy"] == POLICY
        text = await answer.text()
    assert (
        re.search(r"<style|<[^>]+\sstyle=|<[^>]+\son\w+=|<script", re.sub(r"<!--.*?-->", "", text, flags=re.S)) is None
    ), path
    return text


async def test_the_front_page_is_for_browsers_and_the_index_for_others(api: Api) -> None:
    async with api.session.get(api.base_url + "/", headers={"Accept": BROWSER}) as answer:
        page = await answer.text()
        assert (answer.status, answer.headers["content-security-policy"]) == (200, PAGES_POLICY)
    assert {"/login", "/docs", pages.GUIDE, pages.ERRORS} <= set(re.findall(r'href="([^"]+)"', page))
    _, _, index = await api.ask("GET", "/")
    for accept, kind in (
        ("*/*", "application/json"),
        ("application/json", "application/json"),
        ("application/json, text/html;q=0.5", "application/json"),
        ("text/html;q=0", "application/json"),
        ("text/html;q=much", "application/json"),
        ("text/html, application/json;q=0.9", "text/html"),
    ):
        async with api.session.get(api.base_url + "/", headers={"Accept": accept}) as answer:
            assert (answer.status, answer.content_type) == (200, kind), accept
            assert "accept" in answer.headers["vary"].split(", ")
            if kind == "application/json":
                assert await answer.json() == index
    async with api.session.head(api.base_url + "/") as answer:
        assert (answer.status, await answer.read()) == (200, b"")


async def test_every_error_has_its_page(api: Api) -> None:
    listed = await fetched(api, pages.ERRORS)
    for one in pages.errors():
        assert f'href="{pages.address(one.code)}"' in listed
        page = await fetched(api, pages.address(one.code))
        plain = html.unescape(re.sub(r"<[^>]+>", "", page))
        for said in (one.code, str(one.status), one.cause, one.remedy, *one.details, *one.details.values()):
            assert said.replace("`", "") in plain, one.code
    async with api.session.get(f"{api.base_url}{pages.ERRORS}/no_such_code") as answer:
        assert answer.status == 404


async def refused_bytes(api: Api, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*api.address)
    writer.write(request)
    async with asyncio.timeout(120):
        answer = await reader.read()
    writer.close()
    return answer


async def test_a_refusal_names_its_request_and_leads_to_its_page(api: Api, tenant: Tenant) -> None:
    """Whoever refuses: a rule, the guard, the door for callbacks, or the connection itself."""
    asked = (
        ("POST", "/v1/sms/send", {"json": {}, "headers": tenant.headers}),
        ("GET", "/v1/contacts", {}),
        ("PUT", "/v1/contacts", {}),
        ("GET", "/nowhere", {}),
        ("POST", "/in/whatsapp/019c8f5e-62b0-7a10-8f0e-5a3b1c9d7e22", {"data": b"{}"}),
    )
    for method, path, given in asked:
        async with api.session.request(method, api.base_url + path, **given) as answer:
            error = (await answer.json())["error"]
            assert answer.status >= 400
            assert error["requestId"] == answer.headers["x-request-id"], path
            assert error["code"] in await fetched(api, error["docsUrl"])
    head, _, body = (await refused_bytes(api, b"no HTTP at all\r\n\r\n")).partition(b"\r\n\r\n")
    named = re.search(rb"x-request-id: (\S+)", head)
    assert named is not None
    assert b'"requestId":"' + named[1] in body
    assert b'"docsUrl":"/docs/errors/bad_request"' in body


async def test_a_request_id_of_the_clients_own_comes_back_in_the_error(api: Api) -> None:
    _, _, body = await api.ask("GET", "/contacts", headers={"X-Request-Id": "mine-1"})
    assert body["error"]["requestId"] == "mine-1"


async def test_with_a_public_address_the_page_is_named_whole(database_url: str) -> None:
    async with running(database_url, public_url="https://sms.example.net/") as api:
        _, _, body = await api.ask("GET", "/contacts")
        assert body["error"]["docsUrl"] == "https://sms.example.net/docs/errors/unauthorized"
        answer = await refused_bytes(api, b"no HTTP at all\r\n\r\n")
        assert b'"docsUrl":"https://sms.example.net/docs/errors/bad_request"' in answer


@pytest.mark.timeout(120)
async def test_the_guide_is_served_and_its_links_lead_somewhere(api: Api) -> None:
    waiting, seen = ["/", "/docs", pages.GUIDE], {}
    while waiting:
        path = waiting.pop()
        async with api.session.get(api.base_url + path, headers={"Accept": BROWSER}) as answer:
            assert answer.status == 200, f"{path}, of {[page for page, text in seen.items() if path in text]}"
            seen[path] = await answer.text() if answer.content_type == "text/html" else ""
        for target in re.findall(r'href="([^"]+)"', seen[path]):
            place, anchor = urldefrag(urljoin(path, html.unescape(target)))
            if place.startswith("/") and place not in seen and place not in waiting:
                waiting.append(place)
            if anchor and place == path:
                assert f'id="{anchor}"' in seen[path], f"{path}#{anchor}"
    assert {f"{pages.GUIDE}/{name}" for name in ("api.md", "webhooks.md", "errors.md", "operations.md")} <= seen.keys()
