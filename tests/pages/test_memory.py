"""The memory of a web process after every page was visited in both languages and many people have signed in."""

from __future__ import annotations

import asyncio
import html
import re
import urllib.parse
from functools import partial
from pathlib import Path

import pytest

from heliograph.base.database.pool import Pool
from heliograph.console.table import TABLE as CONSOLE
from heliograph.dashboard.table import TABLE as DASHBOARD
from heliograph.demo import seeding
from heliograph.pages.routes import Table
from tests.api.conftest import SECRET_KEY
from tests.console.conftest import set_up
from tests.ports import held_port
from tests.processes import Program, environment, until_true

from .conftest import Browser, Tenant

pytestmark = pytest.mark.lasts(10)

#: The most MB that a web process may have. It has 110; `bench` measures it under load.
MOST = 125
#: Password hashes, two at a time: each needs 19 MB while it is computed, which are released.
HASHES, STAY = 8, 10


async def test_a_web_process_stays_light_after_all_of_its_pages(
    database_url: str, pool: Pool, tenant: Tenant, tmp_path: Path
) -> None:
    async with pool.acquire() as conn:
        owner, operator = await seeding.owners_link(conn, tenant.id), await seeding.operators_link(conn)
    assert owner
    assert operator
    with held_port() as port:
        settings = environment(HELIOGRAPH_DATABASE_URL=database_url, HELIOGRAPH_SECRET_KEY=SECRET_KEY)
        program = await Program.start("api", "--port", str(port), log=tmp_path / "api", environment=settings)
        visitor, customer, ours = (Browser(f"http://127.0.0.1:{port}") for _ in range(3))
        try:
            await until_true(partial(is_there, visitor))
            began = resident(program.pid)
            for _ in range(HASHES // 2):
                await asyncio.gather(*(visitor.sign_in(f"{n}@example.com") for n in range(2)))
            assert resident(program.pid) - began < STAY
            await customer.enter(owner)
            await set_up(ours, operator)
            for language in ("en", "pt"):
                count = await everywhere(customer, DASHBOARD, "/", language)
                count += await everywhere(ours, CONSOLE, "/console/now", language)
                assert count > 100
            assert resident(program.pid) <= MOST
        finally:
            for browser in (visitor, customer, ours):
                await browser.session.close()
            await program.kill()


def resident(pid: int) -> float:
    """Resident memory, in MB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


async def is_there(browser: Browser) -> bool:
    return (await browser.get("/login")).status == 200


async def everywhere(browser: Browser, table: Table, front: str, language: str) -> int:
    """Request every page without an id, and all that they link to, once for each set of parameter names. Returns the
    number of pages."""
    wanted = [front, *sorted(one.path for one in table.routes if one.method == "GET" and "{" not in one.path)]
    seen, count = set[tuple[str, ...]](), 0
    for address in wanted:
        path, _, query = address.partition("?")
        route = table.find(path)[0].get("GET")
        if route is None or (route.is_public and path != front):
            continue
        names = (route.path, *sorted(name for name, _ in urllib.parse.parse_qsl(query)))
        if names in seen:
            continue
        seen.add(names)
        page = await browser.get(address, Accept_Language=language)
        assert page.status < 500, address
        count += page.status == 200
        links = [html.unescape(link) for link in re.findall(r'href="([/?][^"#]*)"', page.text)]
        wanted += [urllib.parse.urljoin(path, link) for link in links]
    return count
