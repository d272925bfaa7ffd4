"""Pages for people: the front page, the page of each error, the guide, and the `docsUrl` that leads to them."""

from __future__ import annotations

import asyncio
import html
import re
from urllib.parse import urldefrag, urlencode, urljoin

from heliograph.api.document import guide, markdown
from heliograph.api.document.docs import POLICY
from heliograph.api.document.error_pages import address, errors
from heliograph.api.document.guide import Guide
from heliograph.api.shapes.envelope import ERRORS
from heliograph.pages.serving.rendering import POLICY as PAGES_POLICY
from heliograph.why.words import entries
from tests.house.project import ROOT, VENDORED

from .conftest import Api, Tenant, running

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


async def fetched(api: Api, path: str) -> str:
    """A page, which must exist, be HTML, and keep to its policy."""
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
    assert {"/login", "/docs", guide.PATH, ERRORS} <= set(re.findall(r'href="([^"]+)"', page))
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


async def test_an_address_that_leads_nowhere_is_a_page_for_browsers_and_an_error_for_programs(api: Api) -> None:
    for accept, kind in ((BROWSER, "text/html"), ("*/*", "application/json"), ("application/json", "application/json")):
        for path in ("/mesages", "/messages/nobody/here/at/all", f"{guide.PATH}/nothing"):
            async with api.session.get(api.base_url + path, headers={"Accept": accept}) as answer:
                # Paths of the dashboard are pages for everybody.
                wanted = "text/html" if path.startswith("/messages") else kind
                assert (answer.status, answer.content_type) == (404, wanted), (path, accept)
        async with api.session.get(api.base_url + "/v1/mesages", headers={"Accept": accept}) as answer:
            assert (answer.status, answer.content_type) == (404, "application/json")


async def test_every_error_has_its_page(api: Api) -> None:
    listed = await fetched(api, ERRORS)
    for one in errors():
        assert f'href="{address(one.code)}"' in listed
        page = await fetched(api, address(one.code))
        plain = html.unescape(re.sub(r"<[^>]+>", "", page))
        for said in (one.code, str(one.status), one.cause, one.remedy, *one.details, *one.details.values()):
            assert said.replace("`", "") in plain, one.code
    async with api.session.get(f"{api.base_url}{ERRORS}/no_such_code") as answer:
        assert answer.status == 404


async def refused_bytes(api: Api, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*api.address)
    writer.write(request)
    async with asyncio.timeout(120):
        answer = await reader.read()
    writer.close()
    return answer


async def test_a_refusal_names_its_request_and_leads_to_its_page(api: Api, tenant: Tenant) -> None:
    """Whatever refuses: a rule, the guard, the check of callbacks, or the connection itself."""
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


async def test_the_guide_is_served_and_its_links_lead_somewhere(api: Api) -> None:
    waiting, seen = ["/", "/docs", guide.PATH], {}
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
    assert {f"{guide.PATH}/{name}" for name in ("api", "webhooks", "errors", "operations")} <= seen.keys()
    for path, text in seen.items():
        for picture in re.findall(r'src(?:set)?="([^"]+[.]png)"', text):
            async with api.session.get(api.base_url + picture) as answer:
                assert (answer.status, answer.content_type) == (200, "image/png"), f"{path}: {picture}"


def test_where_a_reason_is_read_on_is_a_place_of_the_guide() -> None:
    served = Guide()
    for listed in entries().values():
        for code, one in listed.items():
            path, heading = urldefrag(one.address)
            assert path in served.entries, code
            assert not heading or f'id="{heading}"' in served.page(path), code


async def test_a_slash_behind_the_front_of_documents_does_no_harm(api: Api) -> None:
    for front in ("/docs", guide.PATH):
        assert await page_at(api, f"{front}/") == await page_at(api, front)


async def page_at(api: Api, path: str) -> str:
    """A page, which may have scripts of its own."""
    async with api.session.get(api.base_url + path, headers={"Accept": BROWSER}) as answer:
        assert (answer.status, answer.content_type) == (200, "text/html"), path
        return await answer.text()


async def test_the_guide_is_searched(api: Api) -> None:
    async def answers(question: str) -> list[tuple[str, str]]:
        page = await fetched(api, f"{guide.SEARCH}?{urlencode({'q': question})}")
        assert f'value="{html.escape(question)}"' in page
        return re.findall(r'<li><a href="([^"]+)">[^<]*</a><p>(.*?)</p>', page)

    (first, excerpt), *_ = await answers("quiet hours")
    assert (first, "<mark>quiet</mark> <mark>hours</mark>" in excerpt) == ("/guide/routing#quiet-hours", True)
    # All words, in any place; case and accents do not matter, and a word may be incomplete.
    assert "/guide/backup" in {urldefrag(path)[0] for path, _ in await answers("BACKUP restör point in time")}
    assert "/docs/errors/quota_exceeded" in {path for path, _ in await answers("quota_exceeded")}
    found = await answers("message")
    assert len(found) == guide.MOST
    for question in ("", "zzzz message", "<script>alert(1)</script>", "x" * 300):
        page = await fetched(api, f"{guide.SEARCH}?{urlencode({'q': question})}")
        assert "<li><a href=" not in page.partition("<main")[2].partition("</main>")[0], question


def test_every_page_of_the_guide_has_its_place() -> None:
    placed = {name for names in guide.SECTIONS.values() for name in names}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} == placed
    made = Guide()
    assert [entry.title for entry in made.sections["Start"]] == ["Getting started"]
    assert list(made.sections) == ["Start", *guide.SECTIONS, "Decisions"]


def test_no_line_of_the_guide_ends_within_an_option() -> None:
    """Such as behind one of the hyphens of `--org`."""
    page, _ = markdown.html("Run `a b-c --org <ORG>`.", lambda target: target)
    assert page == "<p>Run <code>a b-c <span>--org</span> &lt;ORG&gt;</code>.</p>\n"
    assert re.search(r"code span \{\s+white-space: nowrap;", (VENDORED / "pages.css").read_text())
