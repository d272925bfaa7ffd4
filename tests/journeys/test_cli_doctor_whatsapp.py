"""What `heliograph doctor` says of WhatsApp accounts, and of messages that wait for them."""

from __future__ import annotations

import asyncio
import re
import shlex
from typing import Any

import msgspec
from typer.testing import CliRunner

from heliograph.base.database.pool import Pool
from heliograph.cli import app
from tests.rules.whatsapp_factories import SECRET_KEY, TOKEN, account, made, make_app, message


async def examined(url: str) -> dict[str, Any]:
    """Checks by their names."""
    arguments = ["doctor", "--url", "http://127.0.0.1:1", "--json"]
    environment = {"HELIOGRAPH_DATABASE_URL": url, "HELIOGRAPH_SECRET_KEY": SECRET_KEY}
    done = await asyncio.to_thread(CliRunner().invoke, app, arguments, env=environment)
    assert TOKEN not in done.output
    found = msgspec.json.decode(done.stdout)
    assert len({one["check"] for one in found}) == len(found), "something was looked at twice"
    return {one["check"]: one for one in found}


async def test_each_account_is_told_with_its_trouble_and_the_remedy(database_url: str, pool: Pool) -> None:
    who = await made(pool)
    organization = "Rui's shop & sons"
    await pool.execute("UPDATE organizations SET name = $2 WHERE id = $1", who.organization_id, organization)
    silent = await make_app(pool, verified=False)
    troubles = {
        "good": ("ok", "its token is valid", ""),
        "invalid": ("failed", "Meta rejects its token", "credential_status = 'invalid'"),
        # As a message found out, before the next sync.
        "expired": (
            "failed",
            "Meta rejects its token: it has expired",
            "credential_status = 'invalid', held_until = now(), held_reason = 'it has expired'",
        ),
        "held": ("warning", "held: Account restricted", "held_until = now(), held_reason = 'Account restricted'"),
        "scope": ("warning", "lacks permissions", "credential_status = 'missing_scope'"),
        "expiring": ("warning", "expires at 2027", "credential_status='expiring', credential_expires_at='2027-01-01Z'"),
        "deaf": ("warning", "not subscribed", "subscribed = false"),
        "silent": ("warning", "no callback from Meta", f"app = '{silent}'"),
        "sealed": ("failed", "another secret key", r"token = '\x01' || gen_random_uuid()::text::bytea"),
        "unread": ("warning", "sync with Meta failed: no numbers", "mirror_detail = 'no numbers'"),
        "away": (
            "warning",
            "Meta cannot be reached from here: Connection refused",
            "mirror_detail = 'credential: connect Connection refused; numbers: connect Connection refused'",
        ),
        "unpaid": (
            "warning",
            "its prices are in USD, but the organization's wallet is in EUR, so none of its messages can be paid for",
            "currency = 'USD'",
        ),
        "paused": ("warning", "paused", "state = 'paused', credential_status = 'invalid'"),
    }
    names = {}
    for kind, (_, _, change) in troubles.items():
        id, names[kind] = await account(pool, who.organization_id, who.app)
        if change:
            await pool.execute(f"UPDATE whatsapp_accounts SET {change} WHERE id = $1", id)
    checks = await examined(database_url)
    for kind, (state, detail, _) in troubles.items():
        found = checks[f"whatsapp {names[kind]}"]
        assert found["state"] == state, found
        assert detail in found["detail"]
        assert bool(found["remedy"]) is (state != "ok")
        # There are several organizations here, so a command without one would be refused.
        for command in re.findall(r"`(heliograph whatsapp account [^`]+)`", found["remedy"]):
            assert shlex.split(command)[5:7] == ["--org", organization], command
    assert "--app-secret-file FILE --token-file FILE`" in checks[f"whatsapp {names['sealed']}"]["remedy"]


async def test_what_meta_warns_of_is_a_check_of_its_own(database_url: str, pool: Pool) -> None:
    who, other = await made(pool), await made(pool)
    await pool.execute(
        "INSERT INTO whatsapp_warnings VALUES ($1, $2, 'scheduled_disable', 'November 27, 2026', now(), NULL),"
        " ($1, $2, 'pin_changed', '', now() + interval '1 s', NULL), ($3, $4, 'violation', 'SPAM', now(), now())",
        who.organization_id, who.account_id, other.organization_id, other.account_id,
    )  # fmt: skip
    checks = await examined(database_url)
    found = checks[f"whatsapp {who.waba_id} warnings"]
    assert (found["state"], found["detail"]) == ("warning", "scheduled disable November 27, 2026; pin changed")
    assert f"account acknowledge {who.waba_id} --org " in found["remedy"]
    assert checks[f"whatsapp {who.waba_id}"]["state"] == "ok"
    assert f"whatsapp {other.waba_id} warnings" not in checks  # it is over


async def test_what_waits_for_a_held_number_is_not_late_and_what_waits_for_a_worker_is(
    database_url: str, pool: Pool
) -> None:
    held, other = await made(pool), await made(pool)
    await message(pool, held)
    await pool.execute("UPDATE queue SET due_at = now() - interval '1 hour'")
    assert "whatsapp is 3,6" in (await examined(database_url))["queue"]["detail"]
    await pool.execute("UPDATE whatsapp_numbers SET held_until = now() WHERE id = $1", held.number_id)
    assert (await examined(database_url))["queue"]["state"] == "ok"
    await message(pool, other)
    await pool.execute("UPDATE queue SET due_at = now() - interval '2 hours' WHERE line = $1", other.number_id)
    assert "whatsapp is 7,2" in (await examined(database_url))["queue"]["detail"]
