"""The page that shows the OpenAPI document: what it may load, how it is cached, and that its files are as published."""

from __future__ import annotations

import gzip
import hashlib
import re

from heliograph.api.document.docs import POLICY, Docs
from heliograph.api.door.limits import AnonymousLimiter
from tests.house.project import VENDORED

from .conftest import Api


async def test_the_page_and_its_files_come_under_a_strict_policy(api: Api) -> None:
    async with api.session.get(api.base_url + "/docs") as answer:
        page = await answer.text()
        assert (answer.status, answer.content_type) == (200, "text/html")
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["cache-control"] == "no-cache"
    assert "unsafe" not in POLICY
    assert re.search(r"<style|\sstyle=|\son\w+=|<script(?! src=)", page) is None
    files = re.findall(r'(?:src|href)="(/docs/[^"]+)"', page)
    assert len(files) == 4
    for file in files:
        async with api.session.get(api.base_url + file) as answer:
            body = await answer.read()
            assert answer.status == 200
            assert answer.content_type == ("text/css" if file.endswith(".css") else "text/javascript")
            assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["x-request-id"]
        assert file.split("/")[2] == hashlib.sha256(body).hexdigest()[:16]


async def test_what_the_browser_has_is_not_sent_again(api: Api) -> None:
    address = api.base_url + "/docs"
    async with api.session.head(address) as answer:
        etag = answer.headers["etag"]
        assert (answer.status, await answer.read()) == (200, b"")
    strong = etag.removeprefix("W/")
    for given, status in ((etag, 304), (f'"other", {strong}', 304), ("*", 304), ('"other"', 200)):
        async with api.session.get(address, headers={"If-None-Match": given}) as answer:
            assert (answer.status, answer.headers["etag"]) == (status, etag)
            assert bool(await answer.read()) is (status == 200)


async def test_it_comes_small_to_who_can_unpack_it(api: Api) -> None:
    address = next(
        api.base_url + file for file in Docs(AnonymousLimiter(10**9)).paths if file.endswith("swagger-ui-bundle.js")
    )
    whole = (VENDORED / "swagger-ui-bundle.js").read_bytes()
    for accepted, encoding in (("br, gzip", "gzip"), ("gzip;q=0", None), ("identity", None), ("GZIP;q=0.5", "gzip")):
        headers = {"Accept-Encoding": accepted}
        async with api.session.get(address, headers=headers, auto_decompress=False) as answer:
            body = await answer.read()
            assert answer.headers.get("content-encoding") == encoding
            assert answer.headers["vary"] == "accept-encoding"
            assert answer.headers["content-length"] == str(len(body))
        assert (gzip.decompress(body) if encoding else body) == whole
        assert encoding is None or len(body) < len(whole) / 2


async def test_other_methods_and_other_paths_are_refused(api: Api) -> None:
    async with api.session.post(api.base_url + "/docs", data=b"x" * 100) as answer:
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    for path in ("/docs/README.md", "/docs/../serve.py", "/docs/%2e%2e/docs.py", "/docsx"):
        async with api.session.get(api.base_url + path) as answer:
            assert answer.status == 404
            assert (await answer.json())["error"]["code"] == "not_found"


def test_the_viewer_is_what_its_authors_published() -> None:
    sums = re.findall(r"^([0-9a-f]{64})  (\S+)$", (VENDORED / "README.md").read_text(), re.M)
    assert {name for _, name in sums} == {each.name for each in VENDORED.iterdir()} - {
        "README.md",
        "docs.html",
        "docs.css",
        "docs.js",
        "pages.css",
    }
    for digest, name in sums:
        assert hashlib.sha256((VENDORED / name).read_bytes()).hexdigest() == digest
