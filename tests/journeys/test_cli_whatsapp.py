"""`heliograph whatsapp account|number|template` on a new organization."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.process.settings import Settings
from heliograph.cli import app
from heliograph.cli.terminal.console import Problem
from heliograph.simulators.graph.simulator import GraphSimulator, quick
from heliograph.whatsapp.mirror import accounts, apps
from heliograph.whatsapp.mirror.accounts import AccountExists
from tests.rules.factories import organization

SECRET_KEY = "a secret key for tests of WhatsApp commands, long"
KEY = apps.seal_key(Settings(secret_key=SECRET_KEY))


class Operator:
    """Runs commands in this process: this is about WhatsApp, not about how commands start and end."""

    def __init__(self, url: str, graph: GraphSimulator) -> None:
        self.graph = graph
        self.options = graph.options
        self.environment = {
            "HELIOGRAPH_DATABASE_URL": url,
            "HELIOGRAPH_SECRET_KEY": SECRET_KEY,
            "HELIOGRAPH_PUBLIC_URL": "https://sms.example.com",
        }

    async def call(self, *arguments: str, input: str | None = None, **environment: str) -> Result:
        given = self.environment | environment
        return await asyncio.to_thread(CliRunner().invoke, app, ["whatsapp", *arguments], input=input, env=given)

    async def data(self, *arguments: str, input: str | None = None, **environment: str) -> Any:
        done = await self.call(*arguments, "--json", input=input, **environment)
        assert done.exit_code == 0, f"{done.output} {done.exception!r}"
        for secret in (self.options.token, self.options.app_secret):
            assert secret not in done.output
        return msgspec.json.decode(done.stdout)

    async def add(self, *arguments: str, input: str | None = None, **environment: str) -> Any:
        """Add the simulator's account; token and secret come from the environment unless there is `input`."""
        if input is None:
            environment.setdefault("HELIOGRAPH_WHATSAPP_TOKEN", self.options.token)
            environment.setdefault("HELIOGRAPH_WHATSAPP_APP_SECRET", self.options.app_secret)
        where = ("--app-id", self.options.app_id, "--base-url", self.graph.base_url)
        return await self.data("account", "add", self.options.waba, *where, *arguments, input=input, **environment)


@pytest.fixture
async def they(database_url: str) -> AsyncIterator[Operator]:
    async with GraphSimulator(quick()) as graph:
        yield Operator(database_url, graph)


async def test_an_account_is_connected_and_all_that_meta_says_is_there(they: Operator, pool: Pool) -> None:
    await organization(pool)
    they.graph.set_account(subscribed=[])
    made = await they.add("--subscribe", "--verify-token", "typed by hand")
    assert (made["waba_id"], made["credential_status"], made["subscribed"]) == (they.options.waba, "ok", True)
    assert made["templates"] > 0
    assert len(made["numbers"]) == 1
    (known,) = await pool.fetch("SELECT id FROM whatsapp_apps")
    assert made["callback_url"] == f"https://sms.example.com/in/whatsapp/{known['id']}"
    assert made["verify_token"] == "typed by hand"
    (listed,) = await they.data("account", "list")
    assert (listed["numbers"], listed["templates"], listed["state"]) == (1, made["templates"], "active")
    shown = await they.data("account", "show", made["id"])
    assert shown["callback_url"] == made["callback_url"]
    assert shown["verify_token"] == "typed by hand"
    (number,) = await they.data("number", "list")
    assert number["graph_id"] == they.options.number_id
    assert number["connection_status"] == "connected"
    # The simulator calls back whoever is subscribed.
    assert they.graph.set_account().subscribed == [they.options.app_id]
    again = await they.call(
        "account", "add", they.options.waba, "--app-id", they.options.app_id, "--base-url", they.graph.base_url,
        HELIOGRAPH_WHATSAPP_TOKEN=they.options.token,
    )  # fmt: skip
    assert isinstance(again.exception, AccountExists)


async def test_an_account_that_the_wallet_does_not_pay_for_is_connected_with_a_warning(
    they: Operator, pool: Pool
) -> None:
    """Each send was refused as one that the wallet does not cover, and nothing said that the currencies differ."""
    await organization(pool)
    await they.data("wallet", "top-up", "250", "--currency", "EUR")
    secrets = {
        "HELIOGRAPH_WHATSAPP_TOKEN": they.options.token,
        "HELIOGRAPH_WHATSAPP_APP_SECRET": they.options.app_secret,
    }
    add = ("account", "add", they.options.waba, "--app-id", they.options.app_id, "--base-url", they.graph.base_url)
    told = "the wallet is in EUR, so none of this account's messages can be paid for"
    assert told in (await they.call(*add, "--currency", "USD", **secrets)).stderr
    await they.data("account", "remove", they.options.waba, "--yes")
    again = await they.call(*add, "--currency", "EUR", **secrets)
    assert again.exit_code == 0
    assert told not in again.stderr


async def test_secrets_come_from_stdin_or_files_and_a_verify_token_is_made_up(
    they: Operator, pool: Pool, tmp_path: Path
) -> None:
    await organization(pool)
    mark = "\ufeff"  # some editors begin a file with it
    made = await they.add(input=f"{mark}{they.options.token}\n{they.options.app_secret}\n")
    assert len(made["verify_token"]) >= 24
    await they.data("account", "remove", they.options.waba, "--yes")
    token, secret = tmp_path / "token", tmp_path / "secret"
    token.write_text(f"{mark}{they.options.token}\r\n")
    secret.write_text(f"{mark}{they.options.app_secret}\r\n")
    again = await they.add("--token-file", str(token), "--app-secret-file", str(secret), input="")
    assert (again["id"], again["verify_token"]) == (made["id"], made["verify_token"])
    assert again["templates"] == made["templates"] > 0
    stored = await accounts_of(pool)
    assert accounts.open_token(KEY, stored["id"], stored["token"]) == they.options.token


async def accounts_of(pool: Pool) -> Any:
    (row,) = await pool.fetch("SELECT * FROM whatsapp_accounts")
    return row


async def test_what_meta_refuses_is_not_stored(they: Operator, pool: Pool) -> None:
    await organization(pool)
    where = ("--app-id", they.options.app_id, "--app-secret", they.options.app_secret)
    they.graph.set_token("other", state="expired")
    for waba, token, word in (
        (they.options.waba, "unheard-of", "rejects this token"),
        (they.options.waba, "other", "rejects this token"),
        ("123", they.options.token, "cannot be read"),
    ):
        done = await they.call("account", "add", waba, *where, "--token", token, "--base-url", they.graph.base_url)
        assert isinstance(done.exception, Invalid)
        assert word in str(done.exception)
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_accounts") == 0
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_apps") == 0


async def test_pause_resume_update_remove(they: Operator, pool: Pool, tmp_path: Path) -> None:
    await organization(pool)
    made = await they.add("--name", "shop")
    assert (await they.data("account", "pause", "shop"))["state"] == "paused"
    assert (await they.data("account", "resume", they.options.waba))["state"] == "active"
    they.graph.set_token("new-token")
    new = tmp_path / "token"
    new.write_text("new-token\n")
    await pool.execute("UPDATE whatsapp_accounts SET credential_status = 'invalid', held_until = now() + '1 hour'")
    changed = await they.data("account", "update", "shop", "--token-file", str(new), "--name", "store")
    assert (changed["name"], changed["credential_status"]) == ("store", "ok")
    stored = await accounts_of(pool)
    assert accounts.open_token(KEY, stored["id"], stored["token"]) == "new-token"
    assert await pool.fetchval("SELECT held_until <= now() FROM whatsapp_accounts")
    new.write_bytes(b"\xe9\n")
    unreadable = await they.call("account", "update", "shop", "--token-file", str(new))
    assert (unreadable.exit_code, f"{new}: " in unreadable.output.replace("\n", "")) == (2, True), unreadable.output
    refused = await they.call("account", "update", "store", "--token", "unheard-of")
    assert isinstance(refused.exception, Invalid)
    assert (await accounts_of(pool))["token"] == stored["token"]
    rotated = await they.data("account", "update", "store", "--app-secret-file", "-", input="another secret\n")
    assert "secret" not in rotated
    async with pool.acquire() as conn:
        app_now = await apps.get_app(conn, KEY, stored["app"])
    assert app_now.secrets == (b"another secret", they.options.app_secret.encode())
    # A file with an error changes nothing.
    partly = await they.call(
        "account", "update", "store", "--app-secret-file", "-", "--base-url", "not an address", input="a third secret\n"
    )
    assert isinstance(partly.exception, Invalid)
    async with pool.acquire() as conn:
        assert await apps.get_app(conn, KEY, stored["app"]) == app_now
    assert (await they.data("account", "remove", made["id"], "--yes"))["state"] == "removed"
    assert await they.data("account", "list") == []
    assert await they.data("number", "list") == []
    gone = await they.call("account", "show", "store")
    assert isinstance(gone.exception, NotFound)


async def test_accounts_outlive_the_secret_key(they: Operator, pool: Pool, tmp_path: Path) -> None:
    """A lost key cannot be had again, but Meta has everything that was sealed under it."""
    await organization(pool)
    made = await they.add("--name", "shop", "--verify-token", "typed by hand")
    they.environment["HELIOGRAPH_SECRET_KEY"] = "the next secret key, since that one has been lost"
    shown = await they.data("account", "show", "shop")
    assert (shown["callback_url"], shown["verify_token"]) == (made["callback_url"], None)
    token, secret = tmp_path / "token", tmp_path / "secret"
    token.write_text(they.options.token)
    secret.write_text(they.options.app_secret)
    another = ("account", "add", "900", "--app-id", they.options.app_id, "--base-url", they.graph.base_url)
    for command in (
        ("account", "update", "shop", "--token-file", str(token)),
        ("account", "update", "shop", "--subscribe"),
        ("number", "sync", "shop"),
        (*another, "--token-file", str(token)),
    ):
        refused = await they.call(*command)
        assert isinstance(refused.exception, Invalid), (command, refused.exception)
        assert "another secret key" in refused.exception.details["fields"][0]["message"]
    changed = await they.data("account", "update", "shop", "--app-secret-file", str(secret), "--token-file", str(token))
    assert (changed["credential_status"], changed["callback_url"]) == ("ok", made["callback_url"])
    assert changed["verify_token"] not in (None, "typed by hand")
    assert await they.data("number", "sync", "shop")
    async with pool.acquire() as conn:
        key = apps.seal_key(Settings(secret_key=they.environment["HELIOGRAPH_SECRET_KEY"]))
        app_now = await apps.get_app(conn, key, (await accounts_of(pool))["app"])
    assert app_now.secrets == (they.options.app_secret.encode(),)


async def test_an_app_outlives_the_secret_key_and_its_last_account(they: Operator, pool: Pool, tmp_path: Path) -> None:
    """An account that had been removed could not be added again: no command could change the app without one."""
    await organization(pool)
    made = await they.add("--name", "shop")
    await they.data("account", "remove", "shop", "--yes")
    they.environment["HELIOGRAPH_SECRET_KEY"] = "the next secret key, since that one has been lost"
    token, secret = tmp_path / "token", tmp_path / "secret"
    token.write_text(they.options.token)
    again = ("account", "add", they.options.waba, "--app-id", they.options.app_id, "--base-url", they.graph.base_url)
    again = (*again, "--token-file", str(token), "--app-secret-file", str(secret))
    secret.write_text("0" * 32)
    assert isinstance((await they.call(*again)).exception, Invalid)
    secret.write_text(they.options.app_secret)
    found = await they.data(*again)
    assert (found["callback_url"], found["credential_status"]) == (made["callback_url"], "ok")
    assert found["verify_token"] not in (None, made["verify_token"])
    assert await they.data("number", "sync", they.options.waba)
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'whatsapp_app.changed'") == 1


async def test_holds_are_ended_by_hand(they: Operator, pool: Pool) -> None:
    await organization(pool)
    await they.add("--name", "shop")
    held = "held_until = now() + '1 hour', held_reason = 'payment problem', held_for_status = true"
    await pool.execute(f"UPDATE whatsapp_numbers SET {held}")
    assert (await they.data("number", "release", "+1 555-000-1000"))["released"]
    assert not (await they.data("number", "release", they.options.number))["released"]
    await pool.execute(f"UPDATE whatsapp_numbers SET {held}")
    await pool.execute(f"UPDATE whatsapp_accounts SET {held}")
    # The number's own hold ends; its account's is separate, and is mentioned.
    released = await they.data("number", "release", they.options.number)
    assert (released["released"], released["account_held"]) == (True, "payment problem")
    await pool.execute(f"UPDATE whatsapp_numbers SET {held}")
    assert (await they.data("account", "release", "shop"))["released"]
    for table in ("whatsapp_numbers", "whatsapp_accounts"):
        row = await pool.fetchrow(f"SELECT held_until, held_reason, held_for_status FROM {table}")
        assert tuple(row) == (None, None, False)
    assert isinstance((await they.call("number", "release", "+258841234567")).exception, NotFound)


async def test_warnings_are_listed_until_they_are_seen_to(they: Operator, pool: Pool) -> None:
    await organization(pool)
    made = await they.add("--name", "shop")
    await pool.execute(
        "INSERT INTO whatsapp_warnings SELECT organization_id, id, 'violation', 'SPAM', now() FROM whatsapp_accounts"
    )
    (row,) = await they.data("account", "list")
    assert row["warnings"] == "violation SPAM"
    assert (await they.data("account", "show", made["id"]))["warnings"] == "violation SPAM"
    assert await they.data("account", "acknowledge", "shop") == [
        {"waba_id": made["waba_id"], "warning": "violation", "detail": "SPAM"}
    ]
    (row,) = await they.data("account", "list")
    assert row["warnings"] is None
    assert await they.data("account", "acknowledge", "shop") == []


async def test_templates_and_numbers_are_read_on_demand(they: Operator, pool: Pool) -> None:
    await organization(pool)
    await they.add()
    they.graph.set_template("order_shipped", status="PAUSED")
    they.graph.set_number(quality_rating="YELLOW")
    (synced,) = await they.data("template", "sync")
    assert (synced["read"], synced["added"], synced["removed"], synced["numbers_changed"]) == (True, 0, 0, 0)
    assert synced["changed"] > 0
    (synced,) = await they.data("number", "sync", they.options.waba)
    assert (synced["numbers_changed"], synced["problems"]) == (1, [])
    assert (await they.data("number", "list"))[0]["quality_rating"] == "yellow"
    listed = await they.data("template", "list")
    assert {one["status"] for one in listed if one["name"] == "order_shipped"} == {"paused"}
    they.graph.set_token(they.options.token, state="expired")
    failed = await they.call("template", "sync", "--json")
    assert failed.exit_code != 0
    assert "templates: 190" in msgspec.json.decode(failed.stdout)[0]["problems"][0]
    assert await they.data("template", "list") == listed


async def test_of_all_accounts_one_whose_token_cannot_be_opened_hinders_no_other(they: Operator, pool: Pool) -> None:
    await organization(pool)
    await they.add()
    await pool.execute("UPDATE whatsapp_accounts SET token = '\\x01'::bytea || gen_random_uuid()::text::bytea")
    they.options = msgspec.structs.replace(they.options, waba=they.graph.add_account("900100200300999").id)
    await they.add()
    for command in ("number", "template"):
        partly = await they.call(command, "sync", "--json")
        assert isinstance(partly.exception, Problem)
        lost, read = msgspec.json.decode(partly.stdout)
        assert (lost["read"], "another secret key" in lost["problems"][0], read["read"]) == (False, True, True)


async def test_a_template_disabled_here_stays_so(they: Operator, pool: Pool) -> None:
    await organization(pool)
    await they.add()
    off = await they.data("template", "disable", "order_shipped")
    assert off
    assert all(one["disabled_locally"] for one in off)
    await they.data("template", "sync")
    listed = await they.data("template", "list")
    assert {one["disabled_locally"] for one in listed if one["name"] == "order_shipped"} == {True}
    assert {one["disabled_locally"] for one in listed if one["name"] != "order_shipped"} == {False}
    on = await they.data("template", "enable", off[0]["id"])
    assert [one["disabled_locally"] for one in on] == [False]
    missing = await they.call("template", "disable", "order_shipped", "--language", "xx")
    assert isinstance(missing.exception, NotFound)


async def test_tables_are_for_people(they: Operator, pool: Pool) -> None:
    await organization(pool)
    done = await they.call(
        "account", "add", they.options.waba, "--app-id", they.options.app_id, "--base-url", they.graph.base_url,
        "--app-secret", they.options.app_secret, "--token", they.options.token,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "callback url" in done.stdout
    assert "message_template_status_update" in done.stderr
    for noun in ("account", "number", "template"):
        listed = await they.call(noun, "list")
        assert listed.exit_code == 0
        assert len(listed.stdout.splitlines()) >= 2
