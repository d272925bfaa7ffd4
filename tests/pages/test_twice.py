"""Journey 11: each button of each page is pressed twice at the same instant, as by a double click. Nothing fails, and
the audit log has each action once."""

from __future__ import annotations

import asyncio
import html
import re

import pytest

from heliograph.base.database.pool import Pool
from heliograph.dashboard.table import ROUTES
from tests.api.test_isolation import Party

from .conftest import Api, Browser, Page, Tenant

#: They end the session, or the organization, that presses the others.
LAST = ("/logout", "/settings/close", "/account/sessions", "/account/password", "/team/members")
#: Their buttons move columns, or change how pages are displayed.
SAME = ("/columns/", "/preferences")
_forms = re.compile(r'<form[^>]*method="post"[^>]*action="([^"]*)"[^>]*>(.*?)</form>', re.S)
_buttons = re.compile(r"<button([^>]*)>")
_value = re.compile(r'\s(name|value)="([^"]*)"')
NEW = "SELECT action, object_id, after FROM audit_log WHERE id > $1 ORDER BY id"
LATEST = "SELECT id FROM audit_log ORDER BY id DESC LIMIT 1"


def buttons(page: Page) -> list[tuple[str, dict[str, str]]]:
    """(action, the button's parameters) of each button of each form."""
    found = []
    for action, inside in _forms.findall(page.text):
        for attributes in _buttons.findall(inside):
            if 'type="button"' in attributes:
                continue
            said = {name: html.unescape(value) for name, value in _value.findall(attributes)}
            found.append((html.unescape(action), {said["name"]: said.get("value", "")} if "name" in said else {}))
    return found


@pytest.mark.lasts(90)
async def test_a_double_click_does_it_once(api: Api, pool: Pool, tenant: Tenant, owner: Browser) -> None:
    party = Party(api, tenant, "acme")
    await party.make(pool)
    paths = []
    for route in ROUTES:
        if route.method != "GET" or route.is_public or "{event}" in route.path or "{anything}" in route.path:
            continue
        paths += [route.path.replace("{id}", id) for id in party.own.values()] if "{id}" in route.path else [route.path]
    pressed: set[tuple[object, ...]] = set()
    twice = []
    for path in paths:
        page = await owner.get(path)
        if page.status != 200:
            continue
        for action, said in buttons(page):
            key = (re.sub(r"[0-9a-f-]{36}", "{id}", action), *(said.items() if not action.startswith(SAME) else ()))
            if key in pressed or action.startswith(LAST):
                continue
            again = await owner.get(path)
            if (action, said) not in buttons(again):
                continue
            pressed.add(key)
            fields = again.form(action) | said
            before = await pool.fetchval(LATEST)
            answers = await asyncio.gather(owner.post(action, fields), owner.post(action, fields))
            assert all(answer.status < 500 for answer in answers), (path, action, [one.words[:300] for one in answers])
            rows = [tuple(row) for row in await pool.fetch(NEW, before)]
            if len(set(rows)) != len(rows):
                twice.append((path, action, said, rows))
    assert len(pressed) > 70
    assert twice == []
