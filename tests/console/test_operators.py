"""Operators: added, given another role, signed out and removed; the last root cannot be."""

from __future__ import annotations

import re

from heliograph.base.actor import SYSTEM
from heliograph.base.database.pool import Pool
from heliograph.people import users
from heliograph.people.operators import accounts

from .conftest import Browser, set_up


async def test_an_operator_is_added_changed_and_removed(pool: Pool, root: Browser, other_browser: Browser) -> None:
    page = await root.get("/console/operators/new")
    wrong = await root.submit(page, "/console/operators", email="no address", role="support")
    assert wrong.status == 422
    assert "e-mail address" in wrong.words
    page = await root.submit(page, "/console/operators", email="rui@example.com", name="Rui", role="support")
    link = re.search(r'value="(http[^"]+/console/setup#[^"]+)"', page.text)
    assert page.status == 200, page.words
    assert link
    # The whole link may be pasted.
    await set_up(other_browser, link[1])
    assert (await other_browser.get("/console/approvals")).status == 403
    async with pool.acquire() as conn:
        rui = next(one for one in await accounts.list_all(conn) if one.email == "rui@example.com")
    page = await root.get(f"/console/operators/{rui.user_id}")
    page = await root.submit(page, f"/console/operators/{rui.user_id}/role", role="auditor")
    assert page.path == "/console/operators"
    assert "The role is changed." in page.words
    async with pool.acquire() as conn:
        after = next(one for one in await accounts.list_all(conn) if one.email == "rui@example.com")
    assert after.role == "auditor"
    assert after.has_factor
    assert after.sessions == 1
    page = await root.get(f"/console/operators/{rui.user_id}")
    wrong = await root.submit(page, f"/console/operators/{rui.user_id}/remove", typed="somebody else")
    assert wrong.status == 422
    page = await root.submit(page, f"/console/operators/{rui.user_id}/remove", typed="rui@example.com")
    assert "is no longer an operator" in page.words
    async with pool.acquire() as conn:
        assert [one.email for one in await accounts.list_all(conn)] == ["eva@example.com"]
        assert await conn.fetchval("SELECT count(*) FROM operator_sessions") == 1
        actions = {
            row["action"]: row["who"] for row in await conn.fetch("SELECT action, who FROM audit_log ORDER BY id")
        }
    for action in ("operator.added", "operator.role_changed", "operator.removed"):
        assert actions[action] in ("operator", "system"), action


async def test_an_operator_is_removed_however_their_address_writes_accents(pool: Pool, root: Browser) -> None:
    """One whose accents are characters of their own was never the text that has to be typed, not even when copied."""
    stored = "joa\u0303o@example.com"
    for typed in (stored, "joão@example.com"):
        async with pool.acquire() as conn:
            user, _ = await users.ensure(conn, SYSTEM, email=stored, name="João")
            await accounts.add(conn, SYSTEM, user_id=user.id, email=stored, role="support")
        action = f"/console/operators/{user.id}/remove"
        page = await root.submit(await root.get(f"/console/operators/{user.id}"), action, typed=typed)
        assert "is no longer an operator" in page.words, (typed, page.words)


async def test_their_sessions_and_factors_are_told(pool: Pool, root: Browser) -> None:
    async with pool.acquire() as conn:
        (eva,) = await accounts.list_all(conn)
    assert (eva.has_totp, eva.has_passkey, eva.has_factor) == (True, False, True)
    page = await root.get("/console/operators")
    assert "on authenticator app" in page.words
    assert "heliograph user link EMAIL --operator" in page.words
    page = await root.get(f"/console/operators/{eva.user_id}")
    assert "Second factor: authenticator app" in page.words
    assert "1 session is open." in page.words
    assert "127.0.0.1" in page.words
    page = await root.submit(page, f"/console/operators/{eva.user_id}/sessions/end")
    assert await pool.fetchval("SELECT count(*) FROM operator_sessions") == 0


async def test_the_last_root_stays(pool: Pool, root: Browser) -> None:
    async with pool.acquire() as conn:
        (eva,) = await accounts.list_all(conn)
    page = await root.get(f"/console/operators/{eva.user_id}")
    wrong = await root.submit(page, f"/console/operators/{eva.user_id}/role", role="support")
    assert wrong.status == 422
    assert "last operator" in wrong.words
    wrong = await root.submit(page, f"/console/operators/{eva.user_id}/remove", typed="eva@example.com")
    assert wrong.status == 422
    assert "last operator" in wrong.words
    wrong = await root.submit(page, f"/console/operators/{eva.user_id}/role", role="king")
    assert wrong.status == 422
    async with pool.acquire() as conn:
        assert [one.role for one in await accounts.list_all(conn)] == ["root"]
        await accounts.change_role(conn, SYSTEM, user_id=eva.user_id, email=eva.email, role="root")
