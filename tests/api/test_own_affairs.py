"""An organization's own settings, exports, saved texts and notices over the API."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7_floor
from heliograph.base.process.settings import Settings
from heliograph.campaigns.staging import Stager
from heliograph.contacts import exporting
from heliograph.overview.exports.work import ExportWork
from heliograph.retention import removing, shorter
from heliograph.sms.by_hand import saved_texts
from tests.processes import until_true
from tests.rules.test_short_retention import count

from .conftest import Api, Tenant
from .test_guard import BLOCKED
from .test_replays import another_key


async def write(pool: Pool) -> None:
    """Do the work that is due, like a worker."""
    work = ExportWork(pool)
    while await work.round():
        pass


async def test_a_file_is_asked_for_written_and_read(api: Api, tenant: Tenant, pool: Pool) -> None:
    async def ask(method: str, path: str, headers: Any = tenant.headers, **options: Any) -> tuple[int, Any]:
        status, _, body = await api.ask(method, path, headers=headers, **options)
        return status, body

    for n in range(2):
        await ask("POST", "/contacts", json={"name": f"p{n}", "phone": f"+25884123456{n}", "tags": [f"t{n}"]})
    status, body = await ask("POST", "/exports", json={"kind": "contacts", "tag": " T1"})
    export = body["export"]
    assert (status, export["status"], export["kind"], export["format"]) == (202, "running", "contacts", "jsonl")
    status, body = await ask("GET", f"/exports/{export['id']}/content")
    assert (status, body["error"]["message"]) == (404, "The file of this export is not finished yet.")
    await write(pool)
    _, body = await ask("GET", f"/exports/{export['id']}")
    assert (body["export"]["status"], body["export"]["rows"], body["export"]["parts"]) == ("finished", 1, 1)
    _, body = await ask("GET", f"/exports/{export['id']}/content", params={"part": "0"})
    (contact,) = (await ask("GET", "/contacts", params={"tag": "t1"}))[1]["items"]
    assert (msgspec.json.decode(body["text"]), body["nextPart"]) == (contact, None)
    assert set(exporting.COLUMNS) == set(contact)
    assert (await ask("GET", f"/exports/{export['id']}/content", params={"part": "1"}))[0] == 404
    assert [one["id"] for one in (await ask("GET", "/exports"))[1]["items"]] == [export["id"]]
    # A filter that does not apply to this kind would seem to have been applied.
    day = "2026-03-01T00:00:00Z"
    for wrong in (
        {"dateFrom": day},
        {"dateTo": day, "kind": "opt_outs"},
        {"tag": "t1", "kind": "messages"},
        {"dateFrom": day, "dateTo": day, "kind": "messages"},
    ):
        status, body = await ask("POST", "/exports", json={"kind": "contacts"} | wrong)
        assert (status, body["error"]["details"]["fields"][0]["field"]) == (400, next(iter(wrong)))
    # Another key of the organization, with and without the scopes.
    headers = await another_key(pool, tenant)
    assert (await ask("GET", f"/exports/{export['id']}", headers=headers))[0] == 404
    poor = await another_key(pool, tenant, profile=None, scopes=["account:read", "sms:read"])
    status, body = await ask("POST", "/exports", headers=poor, json={"kind": "messages"})
    assert (status, body["error"]["details"]["required"]) == (403, ["whatsapp:read"])
    actions = await pool.fetch("SELECT action, who FROM audit_log WHERE action LIKE '%export%' ORDER BY id")
    assert [tuple(row) for row in actions] == [("contacts.exported", "key"), ("export.fetched", "key")]
    # What is stopped is gone.
    _, body = await ask("POST", "/exports", json={"kind": "opt_outs", "format": "csv"})
    _, body = await ask("DELETE", f"/exports/{body['export']['id']}")
    assert body["export"]["status"] == "stopped"
    assert (await ask("GET", f"/exports/{body['export']['id']}/content"))[0] == 404


async def test_a_message_is_gone_after_the_time_of_its_organization(api: Api, tenant: Tenant, pool: Pool) -> None:
    body = {"to": "+258841234567", "message": "Olá"}
    headers = tenant.headers | {"Idempotency-Key": "one"}
    status, _, sent = await api.ask("POST", "/sms/send", json=body, headers=headers)
    place = f"/sms/messages/{sent['message']['id']}"
    assert (status, (await api.ask("GET", place, headers=tenant.headers))[0]) == (202, 200)
    for days, answer in ((29, 400), (30, 200)):
        status, _, body = await api.ask(
            "PATCH", "/account/settings", json={"messageDays": days}, headers=tenant.headers
        )
        assert status == answer
    assert body["settings"]["messageDays"] == 30
    # As if it had been accepted and delivered 31 days ago.
    old = UUID(int=uuid7_floor(datetime.now(UTC) - timedelta(days=31)).int + 1)
    await pool.execute(
        "UPDATE messages SET id = $1, status = 'delivered', accepted_at = now() - interval '31 days'", old
    )
    place = f"/sms/messages/{old}"
    assert (await api.ask("GET", place, headers=tenant.headers))[0] == 200
    _, _, before = await api.ask("GET", "/usage", headers=tenant.headers)
    async with pool.acquire() as conn:
        assert await shorter.forget(conn)
        assert await removing.forget(conn, Settings(secret_key="a secret key for tests, long enough"))
    status, _, body = await api.ask("GET", place, headers=tenant.headers)
    assert (status, body["error"]["code"]) == (404, "not_found")
    _, _, body = await api.ask("GET", "/sms/messages", headers=tenant.headers)
    assert body["items"] == []
    _, _, after = await api.ask("GET", "/usage", headers=tenant.headers)
    told = [[(one["type"], one["quantity"], one["balanceAfter"]) for one in body["items"]] for body in (before, after)]
    assert told[0] == told[1], "its sum stands for it"
    assert [one["messageId"] for one in after["items"] if one["type"] == "usage"] == [None]


async def test_a_shorter_time_answers_what_it_deletes(api: Api, tenant: Tenant, pool: Pool) -> None:
    await count(pool, tenant.id, {20: 1234, 100: 56789})
    for changes, texts, messages in (
        ({"textDays": 7}, 1234, None),
        ({"textDays": 14}, None, None),
        ({"messageDays": 60}, None, 56789),
        ({"textDays": None}, None, None),
    ):
        status, _, body = await api.ask("PATCH", "/account/settings", json=changes, headers=tenant.headers)
        found = [body[name] and body[name]["sent"] for name in ("erasedTexts", "removedMessages")]
        assert (status, found) == (200, [texts, messages]), changes
        if messages:
            before = datetime.fromisoformat(body["removedMessages"]["before"])
            assert datetime.now(UTC) - before - timedelta(days=60) < timedelta(minutes=1)


async def test_settings_are_changed_by_a_live_key(api: Api, tenant: Tenant, pool: Pool) -> None:
    status, _, body = await api.ask("GET", "/account/settings", headers=tenant.headers)
    assert (status, body["settings"]["quietHours"]) == (200, "off")  # as tests have it
    changes = {"quietHours": "21:00-07:30", "textDays": 5, "notices": {"quota.used": ["bell"]}}
    status, _, body = await api.ask("PATCH", "/account/settings", json=changes, headers=tenant.headers)
    settings = body["settings"]
    assert (settings["quietHours"], settings["textDays"], settings["validitySeconds"]) == ("21:00-07:30", 5, None)
    assert (settings["notices"]["quota.used"], settings["notices"]["wallet.low"]) == (
        ["bell"],
        ["bell", "mail", "webhook"],
    )
    status, _, body = await api.ask("PATCH", "/account/settings", json={"textDays": None}, headers=tenant.headers)
    assert (body["settings"]["textDays"], body["settings"]["quietHours"]) == (None, "21:00-07:30")
    changes = {"campaignApprovalAbove": 0}
    status, _, body = await api.ask("PATCH", "/account/settings", json=changes, headers=tenant.headers)
    assert (status, body["settings"]["campaignApprovalAbove"]) == (200, 0)
    wanted = {"name": "Sale", "message_template": "Hi", "recipients": ["+258841234567"]}
    status, _, body = await api.ask("POST", "/campaigns", json=wanted, headers=tenant.headers)
    place, stager = f"/campaigns/{body['campaign']['id']}", Stager(pool)
    while await stager.round():
        pass
    status, _, body = await api.ask("GET", place, headers=tenant.headers)
    found = body["campaign"]
    assert (found["status"], found["status_reason"], found["approved_at"]) == ("paused", "approval_required", None)
    status, _, body = await api.ask("POST", f"{place}/resume", headers=tenant.headers)
    assert (status, body["error"]["code"]) == (409, "campaign_approval_required")
    assert body["error"]["details"] == {"id": found["id"], "recipients": 1, "limit": 0}
    for wrong, field in (
        ({"campaignApprovalAbove": -1}, "campaignApprovalAbove"),
        ({"quietHours": "late"}, "quietHours"),
        ({"notices": {"quota.used": ["pigeon"]}}, "notices.quota.used"),
        ({"notices": {"x": []}}, "notices.x"),
        ({}, "quietHours"),
    ):
        status, _, body = await api.ask("PATCH", "/account/settings", json=wrong, headers=tenant.headers)
        assert (status, body["error"]["details"]["fields"][0]["field"]) == (400, field)
    reader = await another_key(pool, tenant, profile="read_only")
    assert (await api.ask("PATCH", "/account/settings", json={}, headers=reader))[0] == 403


async def test_texts_are_saved_changed_and_removed(api: Api, tenant: Tenant) -> None:
    asked = {"name": "Hello", "body": "Hello {{name}}"}
    status, _, body = await api.ask("POST", "/sms/texts", json=asked, headers=tenant.headers)
    id = body["savedText"]["id"]
    assert (status, body["savedText"]["name"]) == (201, "Hello")
    status, _, body = await api.ask("POST", "/sms/texts", json=asked, headers=tenant.headers)
    assert (status, body["error"]["code"]) == (409, "saved_text_exists")
    for nothing in ({}, {"name": None}, {"name": " "}):
        status, _, body = await api.ask("PATCH", f"/sms/texts/{id}", json=nothing, headers=tenant.headers)
        assert (status, body["error"]["details"]["fields"][0]["field"]) == (400, "name")
    _, _, body = await api.ask("PATCH", f"/sms/texts/{id}", json={"body": "Bye"}, headers=tenant.headers)
    assert (body["savedText"]["name"], body["savedText"]["body"]) == ("Hello", "Bye")
    _, _, body = await api.ask("GET", "/sms/texts", headers=tenant.headers)
    assert [one["body"] for one in body["items"]] == ["Bye"]
    assert (await api.ask("DELETE", f"/sms/texts/{id}", headers=tenant.headers))[0] == 200
    assert (await api.ask("DELETE", f"/sms/texts/{id}", headers=tenant.headers))[0] == 404


async def test_of_two_changes_of_a_text_at_once_neither_undoes_the_other(api: Api, tenant: Tenant, pool: Pool) -> None:
    _, _, body = await api.ask("POST", "/sms/texts", json={"name": "Old", "body": "old"}, headers=tenant.headers)
    id = UUID(body["savedText"]["id"])

    async def is_blocked() -> bool:
        return bool(await pool.fetchval(BLOCKED))

    async with pool.acquire() as conn, conn.transaction():
        await saved_texts.change(conn, tenant.actor, id=id, body="new")
        renaming = asyncio.create_task(
            api.ask("PATCH", f"/sms/texts/{id}", json={"name": "New"}, headers=tenant.headers)
        )
        await until_true(is_blocked)
    status, _, body = await renaming
    assert (status, body["savedText"]["name"], body["savedText"]["body"]) == (200, "New", "new")


async def test_notices_are_those_whose_subject_the_key_reads(api: Api, tenant: Tenant, pool: Pool) -> None:
    await pool.execute("DELETE FROM notices")
    await pool.execute(
        "INSERT INTO notices (organization_id, id, mode, kind, object, name, facts)"
        " SELECT $1, ('0198c8f5-0000-7000-8000-00000000000' || n)::uuid, 'live', kind, 'x', 'n', '{}'"
        " FROM unnest($2::text[]) WITH ORDINALITY AS told (kind, n)",
        tenant.id,
        ["quota.used", "campaign.failed", "member.joined", "sign_in.new"],
    )

    async def kinds(headers: Any, **query: str) -> tuple[list[str], str | None]:
        _, _, body = await api.ask("GET", "/notices", headers=headers, params=query)
        return [one["kind"] for one in body["items"]], body["nextCursor"]

    assert await kinds(tenant.headers) == (["campaign.failed", "quota.used"], None)
    first, cursor = await kinds(tenant.headers, limit="1")
    assert first == ["campaign.failed"]
    assert cursor is not None
    assert await kinds(tenant.headers, limit="1", cursor=cursor) == (["quota.used"], None)
    poor = await another_key(pool, tenant, profile=None, scopes=["account:read"])
    assert await kinds(poor) == (["quota.used"], None)
