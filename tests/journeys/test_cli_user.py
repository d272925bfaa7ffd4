"""`heliograph user`: members are invited, given another role and removed at the shell."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from typer.testing import CliRunner

from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database.pool import Pool
from heliograph.cli import app
from heliograph.demo import credentials
from heliograph.people import invitations, memberships, users
from tests.rules.factories import blocked, organization


async def run(environment: dict[str, str], *words: str, status: int = 0) -> Any:
    """Its output as JSON; None: it was refused."""
    done = await asyncio.to_thread(CliRunner().invoke, app, ["user", *words, "--json"], env=environment)
    assert done.exit_code == status, done.output
    return msgspec.json.decode(done.stdout) if status == 0 else None


async def test_people_are_invited_and_uninvited(database_url: str, pool: Pool) -> None:
    environment = {"HELIOGRAPH_DATABASE_URL": database_url}
    actor = await organization(pool)
    org = ("--org", str(actor.organization_id))
    made = await run(environment, "invite", "Ana@example.com", "--role", "admin", *org)
    assert made["is_mailed"] is False
    async with pool.acquire() as conn:
        offered = await invitations.offer(conn, token=made["link"].partition("#")[2])
    assert (offered.organization_id, offered.email, offered.role) == (actor.organization_id, "ana@example.com", "admin")
    (listed,) = await run(environment, "invitations", *org)
    assert (listed["email"], listed["role"]) == ("ana@example.com", "admin")
    await run(environment, "withdraw", "ana@example.com", *org)
    assert await run(environment, "invitations", *org) == []
    await run(environment, "withdraw", "ana@example.com", *org, status=1)
    done = await pool.fetch(
        "SELECT action, who FROM audit_log WHERE organization_id = $1 AND action ~ '^invitation' ORDER BY id",
        actor.organization_id,
    )
    assert [tuple(row) for row in done] == [("invitation.made", "cli"), ("invitation.withdrawn", "cli")]


async def test_a_name_is_refused_for_what_is_wrong_with_it(database_url: str, pool: Pool) -> None:
    actor = await organization(pool)
    for name, said in (("gpj\u202eexe", "must not contain control characters"), ("x" * 201, "must have 1 to 200")):
        done = await asyncio.to_thread(
            CliRunner().invoke,
            app,
            ["user", "create", "ana@example.com", "--name", name, "--org", str(actor.organization_id)],
            env={"HELIOGRAPH_DATABASE_URL": database_url},
        )
        assert (done.exit_code, said in done.output + str(done.exception)) == (1, True), done.output


async def test_a_passkey_without_a_password_is_a_second_factor_as_on_the_team_page(
    database_url: str, pool: Pool
) -> None:
    environment = {"HELIOGRAPH_DATABASE_URL": database_url}
    actor = await organization(pool)
    org = ("--org", str(actor.organization_id))
    for one in ("app", "both", "none", "passkey"):
        await run(environment, "create", f"{one}@example.com", *org)
    await pool.execute("UPDATE users SET totp = '\\x00' WHERE email = 'app@example.com'")
    await pool.execute("UPDATE users SET password = 'a hash' WHERE email IN ('app@example.com', 'both@example.com')")
    await pool.execute(
        "INSERT INTO passkeys (user_id, id, credential_id, public_key, uses, name, created_at)"
        " SELECT id, id, decode(md5(email), 'hex'), '', 0, 'phone', now() FROM users"
        " WHERE email IN ('both@example.com', 'passkey@example.com')"
    )
    listed = await run(environment, "list", *org)
    assert {one["email"].partition("@")[0]: one["second_factor"] for one in listed} == {
        "app": True,
        "both": False,
        "none": False,
        "passkey": True,
    }
    async with pool.acquire() as conn:
        assert await memberships.without_factor(conn, actor, is_required=False) == 2


async def test_a_list_that_ends_at_its_limit_says_so(database_url: str, pool: Pool) -> None:
    environment = {"HELIOGRAPH_DATABASE_URL": database_url}
    actor = await organization(pool)
    org = ("--org", str(actor.organization_id))
    for one in ("ana@example.com", "eva@example.com"):
        await run(environment, "invite", one, *org)
        await run(environment, "create", one, "--operator")
    for words in (("list", "--operator"), ("invitations", *org)):
        assert len(await run(environment, *words)) == 2
        done = await asyncio.to_thread(
            CliRunner().invoke, app, ["user", *words, "--limit", "1", "-o", "tsv"], env=environment
        )
        assert (done.exit_code, len(done.stdout.splitlines())) == (0, 1), done.output
        assert "1 are shown, which is the limit" in done.stderr
    await run(environment, "link", "ana@example.com", "--operator")
    for command in (("list",), ("create", "ana@example.com"), ("remove", "ana@example.com")):
        await run(environment, *command, "--operator", *org, status=2)
    assert [one["role"] for one in await run(environment, "list", "--operator")] == ["root", "root"]
    unchanged = await asyncio.to_thread(
        CliRunner().invoke,
        app,
        ["user", "create", "ana@example.com", "--operator", "--role", "support"],
        env=environment,
    )
    assert (unchanged.exit_code, "The role is still root" in unchanged.stderr) == (0, True), unchanged.output
    async with pool.acquire() as conn:
        await users.ensure(conn, SYSTEM, email="rui@example.com")
    await run(environment, "link", "rui@example.com", "--operator", status=1)


async def test_links_lead_to_where_it_is_served(database_url: str, pool: Pool, tmp_path: Path) -> None:
    actor = await organization(pool)
    smsc = credentials.Smsc("127.0.0.1", 1, "s", "x")
    here = {"HELIOGRAPH_DATABASE_URL": database_url, "HELIOGRAPH_SECRET_KEY": "x" * 40}
    org = ("--org", str(actor.organization_id), "--data-dir", str(tmp_path))
    # It says nothing about another database.
    for of, port in ((database_url, 9000), ("postgresql://elsewhere/heliograph", 8080)):
        up = credentials.Credentials("http://127.0.0.1:9000", "", "", "", of, smsc)
        credentials.write_credentials(tmp_path / "credentials.json", up)
        made = await run(here, "invite", f"ana{port}@example.com", *org)
        assert made["link"].startswith(f"http://127.0.0.1:{port}/invitation"), made
        made = await run(here, "create", f"eva{port}@example.com", "--operator", *org[2:])
        assert made["link"].startswith(f"http://127.0.0.1:{port}/console/setup"), made
    made = await run(here | {"HELIOGRAPH_PUBLIC_URL": "https://sms.example.com"}, "invite", "rui@example.com", *org)
    assert made["link"].startswith("https://sms.example.com/")


async def test_a_member_is_admitted_and_gets_another_role(database_url: str, pool: Pool) -> None:
    environment = {"HELIOGRAPH_DATABASE_URL": database_url}
    actor = await organization(pool)
    org = ("--org", str(actor.organization_id))
    made = await run(environment, "create", "ana@example.com", *org)
    assert made["role"] == "owner"
    assert "/enter#" in made["link"]
    # She has an account now, and needs no link.
    assert (await run(environment, "create", "ana@example.com", "--role", "viewer", *org))["link"] is None
    await run(environment, "role", "ana@example.com", "viewer", *org, status=1)
    await run(environment, "create", "eva@example.com", *org)
    await run(environment, "role", "ana@example.com", "developer", *org)
    async with pool.acquire() as conn:
        ana, _ = await users.ensure(conn, SYSTEM, email="ana@example.com")
        assert await memberships.role_of(conn, actor, user_id=ana.id) == "developer"
    await run(environment, "remove", "ana@example.com", "--revoke-keys", status=2)
    await run(environment, "remove", "ana@example.com", "--revoke-keys", *org)
    async with pool.acquire() as conn:
        assert await memberships.role_of(conn, actor, user_id=ana.id) is None


async def test_an_account_that_others_may_have_made_is_invited_and_not_admitted(database_url: str, pool: Pool) -> None:
    """The inviter can read the link, and may have chosen the account's password."""
    environment = {"HELIOGRAPH_DATABASE_URL": database_url}
    actor, elsewhere = await organization(pool), await organization(pool)
    org = ("--org", str(actor.organization_id))
    async with pool.acquire() as conn:
        _, token, _ = await invitations.invite(conn, elsewhere, email="ana@example.com", role="viewer")
        ana, _ = await users.ensure(conn, SYSTEM, email="ana@example.com")
        await invitations.accept(conn, Principal("person", ana.id), token=token, user_id=ana.id)
    await run(environment, "create", "ana@example.com", *org, status=1)
    async with pool.acquire() as conn:
        assert await memberships.role_of(conn, actor, user_id=ana.id) is None
    # Whoever has the link of an invitation joins; and a member stays one.
    made = await run(environment, "invite", "ana@example.com", "--role", "admin", *org)
    async with pool.acquire() as conn:
        token = made["link"].partition("#")[2]
        await invitations.accept(conn, Principal("person", ana.id), token=token, user_id=ana.id)
    assert (await run(environment, "create", "ana@example.com", *org))["role"] == "admin"


async def test_who_removes_the_only_owner_from_the_installation_is_told(database_url: str, pool: Pool) -> None:
    environment = {"HELIOGRAPH_DATABASE_URL": database_url}
    shared, alone, closed = [await organization(pool, state=state) for state in ("active", "active", "closed")]
    async with pool.acquire() as conn:
        ana, _ = await users.ensure(conn, SYSTEM, email="ana@example.com")
        eva, _ = await users.ensure(conn, SYSTEM, email="eva@example.com")
        for actor, user, role in (
            (shared, ana, "owner"),
            (shared, eva, "owner"),
            (alone, ana, "owner"),
            (alone, eva, "admin"),
            (closed, ana, "owner"),
        ):
            await memberships.add(conn, actor, user_id=user.id, role=role)
    # Organizations with other owners, or closed ones, are not named; `shared` has no owner once both are gone.
    for email, orphan in (("ana@example.com", alone), ("eva@example.com", shared)):
        removed = await run(environment, "remove", email)
        assert removed["without_owner"] == [f"Acme {orphan.organization_id}"]


async def test_the_last_root_is_not_removed_from_the_installation_either(database_url: str, pool: Pool) -> None:
    """Removed together with their account, they left an installation that nobody could operate."""
    environment = {"HELIOGRAPH_DATABASE_URL": database_url}
    await run(environment, "create", "eva@example.com", "--operator")
    await run(environment, "remove", "eva@example.com", status=1)
    await run(environment, "create", "rui@example.com", "--operator")
    await run(environment, "remove", "eva@example.com")
    assert [one["email"] for one in await run(environment, "list", "--operator")] == ["rui@example.com"]
    actions = await pool.fetch("SELECT action FROM audit_log WHERE action ~ 'removed' ORDER BY id")
    assert [row["action"] for row in actions] == ["operator.removed", "user.removed"]


async def test_of_two_owners_who_are_removed_at_once_the_second_is_the_last(pool: Pool) -> None:
    shared = await organization(pool)
    people = []
    async with pool.acquire() as conn:
        for email in ("ana@example.com", "eva@example.com"):
            user, _ = await users.ensure(conn, SYSTEM, email=email)
            await memberships.add(conn, shared, user_id=user.id, role="owner")
            people.append(user.id)
    async with pool.acquire() as one, pool.acquire() as other, asyncio.TaskGroup() as tasks, one.transaction():
        assert await users.remove(one, SYSTEM, id=people[0]) == []
        second = tasks.create_task(users.remove(other, SYSTEM, id=people[1]))
        await blocked(pool)
    assert second.result() == [f"Acme {shared.organization_id}"]
