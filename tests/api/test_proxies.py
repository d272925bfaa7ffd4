"""Behind nginx and HAProxy with the configurations of `docs/proxies.md`: keys' address lists and the count of invalid
keys use the client's address, and no client can choose its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from heliograph.accounts.api_keys import lifecycle
from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.contacts.imports import drafts
from heliograph.dashboard.table import ROUTES
from heliograph.http.proxy_protocol import SIGNATURE
from tests.proxying import KINDS, Address, configuration, prefix, proxy

from .conftest import Api, Tenant, running
from .test_protocol import parse, refusal

ADMITTED, OTHER = "127.0.0.5", "127.0.0.6"
TRUSTED = "127.0.0.1/32"


async def ask(address: Address, source: str, secret: str, **headers: str) -> tuple[int, Any]:
    """(status, headers) of a request from `source`."""
    connector = aiohttp.TCPConnector(local_addr=(source, 0), force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        named = {name.replace("_", "-"): value for name, value in headers.items()} | {"x-api-key": secret}
        async with session.get(f"http://{address[0]}:{address[1]}/v1/webhooks", headers=named) as answer:
            await answer.read()
            return answer.status, answer.headers


@pytest.fixture
async def listed(tenant: Tenant, pool: Pool) -> str:
    """A key for ADMITTED alone."""
    async with pool.acquire() as conn:
        _, secret = await lifecycle.issue(
            conn, tenant.actor, name="listed", profile="full_access", allowed_ips=[ADMITTED]
        )
    return secret


@pytest.mark.parametrize("kind", KINDS)
async def test_behind_a_proxy_clients_have_their_own_addresses(
    database_url: str, tmp_path: Path, listed: str, kind: str
) -> None:
    async with (
        running(database_url, trusted_proxies=TRUSTED, proxy_says=KINDS[kind], rate_failures=3) as api,
        proxy(kind, api.address, tmp_path) as front,
    ):
        assert (await ask(front, ADMITTED, listed))[0] == 200
        # A client that claims another address still counts as itself. If the minute ends, there are more attempts.
        lies: list[dict[str, str]] = [
            {},
            {"X_Forwarded_For": ADMITTED},
            {"X_Forwarded_For": f"{ADMITTED}, 127.0.0.1"},
            {"Forwarded": f"for={ADMITTED}"},
        ]
        statuses = [(await ask(front, OTHER, listed, **lie))[0] for lie in lies * 2]
        assert set(statuses) == {401, 429}
        assert (await ask(front, ADMITTED, "hg_live_nonsense"))[0] == 401
        assert (await ask(front, ADMITTED, listed))[0] == 200
        # A client that bypasses the proxy is not believed.
        for lie in lies:
            assert (await ask(api.address, "127.0.0.7", listed, **lie))[0] in (401, 429)


def test_nginx_takes_bodies_as_large_as_are_taken_behind_it() -> None:
    text = configuration("nginx")
    most = re.search(r"^    client_max_body_size (\d+)m;", text, re.MULTILINE)
    assert most is not None
    assert int(most[1]) << 20 >= Settings().max_callback_bytes
    larger = dict(re.findall(r"location = (\S+) {\s+client_max_body_size (\d+)m;", text))
    assert larger.keys() == {one.path for one in ROUTES if one.takes_file}
    assert all(int(size) << 20 > drafts.LONGEST for size in larger.values())


async def test_with_the_proxy_protocol_a_trusted_connection_begins_with_it_and_no_other_does(
    database_url: str, listed: str
) -> None:
    request = f"GET /v1/webhooks HTTP/1.1\r\nHost: a\r\nx-api-key: {listed}\r\nConnection: close\r\n\r\n".encode()
    bare = f"{SIGNATURE.decode()}\x20\0\0\0".encode()
    async with running(database_url, trusted_proxies=TRUSTED, proxy_says="proxy-protocol") as api:
        head = prefix(ADMITTED, 4711)
        assert parse(await api.raw(head + request))[0] == 200
        assert parse(await api.raw(*(head[at : at + 1] for at in range(len(head))), request))[0] == 200
        assert parse(await api.raw(prefix(OTHER, 4711) + request))[0] == 401
        # Nothing in the request says otherwise.
        lying = request.replace(b"Host: a\r\n", b"Host: a\r\nX-Forwarded-For: " + ADMITTED.encode() + b"\r\n")
        assert parse(await api.raw(prefix(OTHER, 4711) + lying))[0] == 401
        # The proxy itself, as in its health checks.
        assert parse(await api.raw(bare + b"GET /readyz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))[0] == 200
        line = f"PROXY TCP4 {ADMITTED} 127.0.0.1 4711 80\r\n".encode()
        assert parse(await api.raw(line + request))[0] == 200
        assert parse(await api.raw(line.replace(ADMITTED.encode(), OTHER.encode()) + request))[0] == 401
        for wrong in (request, b"PROXY UDP4 127.0.0.5 127.0.0.1 1 2\r\n" + request, SIGNATURE + b"\x31\0\0\0"):
            assert refusal(await api.raw(wrong)) == (400, "bad_request")
    async with running(database_url, trusted_proxies="127.0.0.9/32", proxy_says="proxy-protocol") as api:
        assert refusal(await api.raw(prefix(ADMITTED, 4711) + request)) == (400, "bad_request")
        assert parse(await api.raw(request))[0] == 401


async def test_forwarded_is_believed_where_proxies_say_so_and_then_alone(database_url: str, listed: str) -> None:
    async with running(database_url, trusted_proxies=TRUSTED, proxy_says="forwarded") as api:
        for source, said, status in (
            ("127.0.0.1", {"Forwarded": f"for={ADMITTED};proto=https"}, 200),
            ("127.0.0.1", {"Forwarded": f'for=192.0.2.1, for="{ADMITTED}:80", for=127.0.0.1'}, 200),
            ("127.0.0.1", {"Forwarded": f"for={ADMITTED}, for={OTHER}"}, 401),
            ("127.0.0.1", {"Forwarded": f"for={OTHER}", "X_Forwarded_For": ADMITTED}, 401),
            ("127.0.0.1", {"Forwarded": "for=unknown"}, 401),
            ("127.0.0.1", {"X_Forwarded_For": ADMITTED}, 401),
            (OTHER, {"Forwarded": f"for={ADMITTED}"}, 401),
        ):
            assert (await ask(api.address, source, listed, **said))[0] == status, (source, said)


async def test_with_the_proxy_protocol_each_client_has_its_share_of_connections(database_url: str) -> None:
    limits = {"trusted_proxies": TRUSTED, "proxy_says": "proxy-protocol", "max_connections_per_address": 2}
    async with running(database_url, **limits) as api, contextlib.AsyncExitStack() as opened:
        once = b"GET /v1/ HTTP/1.1\r\nHost: a\r\n\r\n"
        held = []
        for number in range(6):
            reader, writer = await _open(api, opened)
            writer.write(prefix(f"192.0.2.{number // 3}", 1) + once)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            held.append(reader)
        # The first connection of each client had to make room for its third.
        for number in (0, 3):
            assert not (await held[number].read()).count(b"HTTP/1.1")
        assert [reader.at_eof() for reader in held] == [True, False, False, True, False, False]


async def _open(api: Api, opened: contextlib.AsyncExitStack) -> Any:
    reader, writer = await asyncio.open_connection(*api.address)
    opened.callback(writer.close)
    return reader, writer
