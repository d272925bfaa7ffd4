"""The headers that every response has, whichever part of the service it comes from."""

from __future__ import annotations

import re
import uuid

from heliograph.api.routes import OPERATIONS
from heliograph.console.table import ROUTES as CONSOLE
from heliograph.dashboard.table import ROUTES as DASHBOARD
from heliograph.pages.assets import PREFIX
from heliograph.pages.serving.rendering import POLICY

from .conftest import Api, Browser, Tenant

#: Paths that are not in the route table: documents, probes, callbacks, files and unknown ones.
OTHERS = (
    "/docs",
    "/guide",
    "/docs/errors/nope",
    "/livez",
    "/readyz",
    "/in/",
    "/in/whatsapp/x",
    "/nope",
    "/favicon.ico",
)

#: The same for everybody, like the front page for programs.
ALIKE = ("/docs", "/guide", "/docs/errors/nope", "/v1/openapi.json")


async def test_no_response_can_be_framed_sniffed_or_stored(api: Api, tenant: Tenant, owner: Browser) -> None:
    paths = {route.path for route in (*DASHBOARD, *CONSOLE) if route.method == "GET"}
    paths |= {f"/v1{operation.path}" for operation in OPERATIONS if operation.method == "GET"}
    paths |= {*OTHERS, f"{PREFIX}nope.js", f"{PREFIX}0/pages.css"}
    seen = set()
    for path in sorted(paths):
        where = re.sub(r"\{\w+\}", lambda _: str(uuid.uuid4()), path)
        for headers in ({"Accept": "text/html"}, tenant.headers):
            async with owner.session.get(owner.base_url + where, headers=headers, allow_redirects=False) as answer:
                said = answer.headers
                kind = said.get("content-type", "")
                assert answer.status < 500, path
                assert said["x-content-type-options"] == "nosniff", (path, answer.status)
                if path not in ALIKE and (path != "/" or "html" in kind):
                    assert said["cache-control"] == "no-store", (path, answer.status)
                if "html" in kind:
                    policy = said["content-security-policy"]
                    assert policy == POLICY or path.startswith(("/docs", "/guide")), path
                    assert "frame-ancestors 'none'" in policy, path
                    assert "unsafe" not in policy, path
                    assert said["referrer-policy"] in ("same-origin", "no-referrer"), path
                seen.add((answer.status, kind.partition(";")[0]))
    assert seen >= {(200, "text/html"), (404, "text/html"), (200, "application/json"), (404, "application/json")}


async def test_nor_can_what_the_parser_refuses(api: Api) -> None:
    answer = await api.raw(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"x-content-type-options: nosniff\r\n" in answer.lower()
