"""Every page and form with ids of another organization in the query or in a field, as `test_foreign.py` has them in the
path: a filter, a message to copy or to send again, the number that a reply is sent from, the key of a limit.

The names of such parameters are not listed here, but found: a route is requested with a fresh id under every name that
the screens in its folder read, one at a time. If a statement searches for that id, it names the reader's own
organization, and each id of the other organization takes its place.
"""

from __future__ import annotations

import inspect
import re
import urllib.parse
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.dashboard.table import ROUTES
from heliograph.pages.routes import Route
from tests.api.test_isolation import MARK, Party
from tests.statements import StatementRecorder, recording_statements

from .conftest import Api, Browser, Tenant, make_person, make_tenant, running
from .test_foreign import OTHERS

#: How a screen reads a query parameter or a field.
READ = {
    "GET": re.compile(r'\bquery(?:\.get\(|\[)\s*"([a-z_]+)"').findall,
    "POST": re.compile(r'\bform(?:\.get\(|\[)\s*"([a-z_]+)"').findall,
}
#: In a query they choose the reader's own mode and page size; in a form they are its token and its mark.
PLAIN = frozenset({"mode", "limit", "_token", "_once"})


@pytest.fixture
async def wire(database_url: str) -> AsyncIterator[tuple[StatementRecorder, str]]:
    async with recording_statements(database_url) as made:
        yield made


@pytest.fixture
async def api(wire: tuple[StatementRecorder, str]) -> AsyncIterator[Api]:
    """A server whose statements are recorded."""
    async with running(wire[1]) as found:
        yield found


def names_of(route: Route) -> list[str]:
    """Names that the route's screen reads: for pages, also those read by others in its folder, since they share how a
    query is read."""
    file = Path(inspect.getfile(inspect.unwrap(route.handler)))
    files = file.parent.glob("*.py") if route.method == "GET" else [file]
    return sorted({name for one in files for name in READ[route.method](one.read_text())} - PLAIN)


class Reader:
    """A user who sends ids in the query or in fields."""

    def __init__(self, browser: Browser, token: str, database: StatementRecorder, own: list[UUID]) -> None:
        self._browser, self._token, self._database, self._own = browser, token, database, own

    async def ask(self, route: Route, name: str, id: UUID) -> tuple[tuple[int, str], str, set[tuple[str, int]]]:
        """(status and path, page, statements that searched for the id, with their number of rows)"""
        path = route.path.replace("{list}", "messages").replace("{anything}", "order-1")
        self._database.take()
        if route.method == "GET":
            page = await self._browser.get(f"{path}?{urllib.parse.urlencode({name: id})}")
        else:
            page = await self._browser.post(path, {"_token": self._token, "_once": str(uuid7()), name: str(id)})
        assert page.status < 500, (route.path, name, page.words)
        asked = set(self._database.lookups(id, *self._own))
        return (
            (page.status, page.path.partition("?")[0].replace(str(id), "")),
            page.text.replace(str(id), "").lower(),
            asked,
        )


@pytest.mark.lasts(60)
async def test_another_organizations_ids_are_as_unknown_as_any(
    api: Api, pool: Pool, tenant: Tenant, wire: tuple[StatementRecorder, str], owner: Browser
) -> None:
    other = Party(api, await make_tenant(pool), MARK)
    await other.make(pool)
    await make_person(pool, other.tenant, "zacarias@example.com")
    ids = other.own | {row[0]: row[1] for row in await pool.fetch(OTHERS, other.tenant.id)}
    marks = {MARK, "zacarias"} | {mark.lower() for mark in other.marks}
    before = await other.state(pool)
    own = [tenant.id, await pool.fetchval("SELECT id FROM users WHERE email = 'ana@example.com'")]
    reader = Reader(owner, (await owner.get("/account")).form("/account")["_token"], wire[0], own)
    taken: dict[str, set[str]] = {"GET": set(), "POST": set()}
    # Forms come last: what they write is listed from then on.
    for route in sorted(ROUTES, key=lambda one: one.method):
        if route.is_public or route.path in ("/logout", "/account") or route.takes_file or "{id}" in route.path:
            continue
        for name in names_of(route):
            expected, _, wanted = await reader.ask(route, name, uuid7())
            if not wanted:
                continue
            # An id can contain its time, around which it is then searched.
            wanted |= (await reader.ask(route, name, uuid4()))[2]
            taken[route.method].add(name)
            for kind, id in ids.items():
                where = (route.method, route.path, name, kind)
                answer, text, asked = await reader.ask(route, name, UUID(id))
                assert [mark for mark in marks if mark in text] == [], where
                if route.method == "GET" and name != "after":  # a position in a list, after which other rows follow
                    assert answer == expected, where
                    assert asked <= wanted, where
    # Parameters known to take an id are among them: for copying, sending again, filtering and marking.
    assert taken["GET"] >= {"again", "copy", "key", "saved", "sent"}, taken
    assert taken["POST"] >= {"id", "change", "contact"}, taken
    changed = [table for table, rows in (await other.state(pool)).items() if rows != before[table]]
    assert changed == []
