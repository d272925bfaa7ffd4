"""`heliograph whatsapp number|template`: sync with Meta, release holds, and disable or enable templates."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import asyncpg
import typer

from heliograph.base.database.pool import Connection, Pool, open_pool
from heliograph.base.errors import Invalid
from heliograph.base.process.settings import Settings
from heliograph.cli.terminal.console import (
    DataDir,
    Org,
    Problem,
    no_database,
    on_database,
    operator,
    settings_of,
    shell,
)
from heliograph.cli.terminal.printing import Json, group, show
from heliograph.whatsapp.dispatch import holds
from heliograph.whatsapp.mirror import accounts, apps, onboarding, sync, template_sync
from heliograph.whatsapp.mirror.reading import Mirror

numbers = group("List WhatsApp numbers, sync them with Meta, and release holds.")
templates = group("List templates, sync them with Meta, and disable or enable them.")

Result = TypeVar("Result")
Maybe = Annotated[
    str | None, typer.Argument(metavar="ACCOUNT", help="Only this account, by Meta's id, its id here or its name.")
]
NUMBERS = (
    "display_phone_number", "verified_name", "connection_status", "quality_rating", "messaging_tier",
    "throughput_per_second", "credential_status", "held_reason", "last_checked_at", "id",
)  # fmt: skip
TEMPLATES = (
    "name",
    "language",
    "category",
    "status",
    "sendable",
    "disabled_locally",
    "parameter_count",
    "quality",
    "id",
)
SYNCED = ("waba_id", "read", "numbers_changed", "added", "changed", "removed", "problems")


@numbers.command("list")
def list_numbers(org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """List an organization's WhatsApp numbers and their health. `id` is the `phoneNumberId` of sends.

    \b
    Example:
      heliograph whatsapp number list
    """

    async def work(conn: Connection) -> list[dict[str, Any]]:
        return await onboarding.numbers_of(conn, (await operator(conn, org)).organization_id)

    show(on_database(work, settings_of(data_dir)), json, NUMBERS)


@numbers.command("sync")
def sync_numbers(which: Maybe = None, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Sync numbers, their health and the credential with Meta now; workers do it every ten minutes.

    \b
    Example:
      heliograph whatsapp number sync
    """
    _sync(which, org, json, data_dir, numbers=True, templates=False)


@numbers.command("release")
def release_number(
    number: Annotated[str, typer.Argument(metavar="NUMBER", help="Number, by digits or id.")],
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Release a hold of a number now that its cause is resolved. A few messages are sent first as a test.

    A hold of its account is released with `heliograph whatsapp account release`.

    \b
    Example:
      heliograph whatsapp number release +212520001234
    """

    async def work(conn: Connection) -> dict[str, Any]:
        organization_id = (await operator(conn, org)).organization_id
        found = await onboarding.find_number(conn, organization_id, number)
        released = await holds.release_number(conn, organization_id, found["id"], by=shell())
        return {
            "id": found["id"],
            "display_phone_number": found["display_phone_number"],
            "released": released,
            "account_held": found["account_held_reason"],
        }

    show(on_database(work, settings_of(data_dir)), json)


@templates.command("list")
def list_templates(
    all_: Annotated[bool, typer.Option("--all", help="Include templates that no longer exist at Meta.")] = False,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List an organization's templates, including those disabled here.

    \b
    Example:
      heliograph whatsapp template list
    """

    async def work(conn: Connection) -> list[dict[str, Any]]:
        actor = await operator(conn, org)
        return await onboarding.templates_of(conn, actor.organization_id, removed=all_)

    show(on_database(work, settings_of(data_dir)), json, TEMPLATES)


@templates.command("sync")
def sync_templates(which: Maybe = None, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Sync all templates with Meta now; workers do it every half hour, and after callbacks.

    \b
    Example:
      heliograph whatsapp template sync
    """
    _sync(which, org, json, data_dir, numbers=False, templates=True)


Name = Annotated[str, typer.Argument(metavar="TEMPLATE", help="Template, by name or id.")]
Language = Annotated[str | None, typer.Option(metavar="CODE", help="Only in this language. Defaults to all.")]
OfAccount = Annotated[str | None, typer.Option("--account", metavar="WABA-ID", help="Only in this account.")]


@templates.command("disable")
def disable(
    name: Name,
    language: Language = None,
    waba_id: OfAccount = None,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Disable a template, whatever its status at Meta: it is hidden from customers, and sends with it are refused.

    \b
    Example:
      heliograph whatsapp template disable order_shipped --language fr
    """
    _set_disabled(name, language, waba_id, True, org, json, data_dir)


@templates.command("enable")
def enable(
    name: Name,
    language: Language = None,
    waba_id: OfAccount = None,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Enable a template that was disabled here.

    \b
    Example:
      heliograph whatsapp template enable order_shipped
    """
    _set_disabled(name, language, waba_id, False, org, json, data_dir)


def _set_disabled(
    name: str,
    language: str | None,
    waba_id: str | None,
    disabled: bool,
    org: str | None,
    json: bool,
    data_dir: DataDir,
) -> None:
    async def work(conn: Connection) -> list[dict[str, Any]]:
        organization_id = (await operator(conn, org)).organization_id
        found = await onboarding.find_templates(conn, organization_id, name=name, language=language, waba_id=waba_id)
        async with conn.transaction():
            for one in found:
                await template_sync.set_disabled(conn, organization_id, one["id"], disabled=disabled, by=shell())
        ids = {one["id"] for one in found}
        return [one for one in await onboarding.templates_of(conn, organization_id, which=name) if one["id"] in ids]

    show(on_database(work, settings_of(data_dir)), json, TEMPLATES)


def _sync(which: str | None, org: str | None, json: bool, data_dir: DataDir, *, numbers: bool, templates: bool) -> None:
    settings = settings_of(data_dir, needs_key=True)

    async def work(pool: Pool) -> list[dict[str, Any]]:
        async with pool.acquire() as conn:
            organization_id = (await operator(conn, org)).organization_id
            if which is None:
                listed = await accounts.list_all(conn, organization_id)
            else:
                listed = [await onboarding.find_account(conn, organization_id, which)]
        mirror = Mirror(pool, key=apps.seal_key(settings))
        rows = []
        try:
            for one in listed:
                try:
                    done = await mirror.sync(organization_id, one.id, numbers=numbers, templates=templates)
                except Invalid as refusal:
                    if which is not None:
                        raise
                    nothing = dict.fromkeys(("numbers_changed", "added", "changed", "removed"), 0)
                    named = {"id": one.id, "waba_id": one.waba_id, "read": False}
                    rows.append({**named, **nothing, "problems": [refusal.message]})
                    continue
                if done is None:
                    continue
                found, changed = done
                failed = (numbers and found.numbers is None) or (templates and found.templates is None)
                rows.append(
                    {
                        "id": one.id,
                        "waba_id": one.waba_id,
                        "read": not failed,
                        "numbers_changed": changed.numbers,
                        "added": changed.templates.added,
                        "changed": changed.templates.changed,
                        "removed": changed.templates.removed,
                        "problems": list(sync.problems_of(found)),
                    }
                )
        finally:
            await mirror.close()
        return rows

    rows = _on_pool(work, settings)
    show(rows, json, SYNCED)
    if not all(row["read"] for row in rows):
        raise Problem("the sync with Meta failed; the stored data is unchanged")


def _on_pool(work: Callable[[Pool], Awaitable[Result]], settings: Settings) -> Result:
    async def connected() -> Result:
        try:
            pool = await open_pool(settings.database_url, size=2)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError, ValueError) as error:
            raise no_database(settings.database_url, error) from None
        try:
            return await work(pool)
        finally:
            await pool.close()

    return asyncio.run(connected())
