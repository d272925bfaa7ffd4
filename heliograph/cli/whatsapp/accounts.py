"""`heliograph whatsapp account`: connected WhatsApp Business Accounts and their secrets."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from heliograph.base.database.pool import Connection
from heliograph.base.network.failures import reason
from heliograph.base.process.settings import Settings, SettingsError
from heliograph.cli.terminal.asking import confirm, line_on_stdin
from heliograph.cli.terminal.console import DataDir, Org, on_database, operator, settings_of, shell
from heliograph.cli.terminal.printing import Json, group, say, show
from heliograph.suppliers.whatsapp_cloud.address import API_VERSION, BASE_URL
from heliograph.suppliers.whatsapp_cloud.graph import CloudClient
from heliograph.whatsapp.dispatch import holds
from heliograph.whatsapp.mirror import accounts, apps, onboarding, sync, warnings
from heliograph.whatsapp.mirror.accounts import BusinessAccount

app = group("Add, list, show, change, pause, resume and remove WhatsApp Business Accounts.")

Which = Annotated[str, typer.Argument(metavar="ACCOUNT", help="Account, by Meta's id, its id here or its name.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Read the token from the first line of a file, or of stdin if -.", allow_dash=True
    ),
]
SecretFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Read the app's secret from the first line of a file.", allow_dash=True),
]
VerifyToken = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", help="Verify token that Meta sends in the handshake. Generated for a new app if omitted."
    ),
]
Version = Annotated[str, typer.Option(metavar="VERSION", help="Version of the Graph API.")]

COLUMNS = (
    "waba_id", "name", "state", "numbers", "templates", "credential_status", "subscribed", "held_reason", "warnings",
    "mirrored_at", "mirror_detail", "id",
)  # fmt: skip


@app.command("add")
def add(
    waba_id: Annotated[str, typer.Argument(metavar="WABA-ID", help="Meta's id of the account (digits).")],
    app_id: Annotated[str, typer.Option(metavar="ID", help="Meta's id of the app (digits).")],
    token: Annotated[
        str | None,
        typer.Option(
            metavar="SECRET",
            show_default=False,
            envvar="HELIOGRAPH_WHATSAPP_TOKEN",
            help=(
                "Token of a system user. If omitted, it is prompted for or read from stdin; command lines "
                "are visible to other users of this machine."
            ),
        ),
    ] = None,
    token_file: TokenFile = None,
    app_secret: Annotated[
        str | None,
        typer.Option(
            metavar="SECRET",
            show_default=False,
            envvar="HELIOGRAPH_WHATSAPP_APP_SECRET",
            help=(
                "The app's secret, for an app not known yet; likewise prompted for, or read from the next "
                "line of stdin."
            ),
        ),
    ] = None,
    app_secret_file: SecretFile = None,
    verify_token: VerifyToken = None,
    currency: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="Currency of the account's prices. Defaults to what Meta reports."),
    ] = None,
    name: Annotated[str, typer.Option(help="Your name for the account. Defaults to its name at Meta.")] = "",
    base_url: Annotated[str, typer.Option(metavar="URL", help="Base URL of the Graph API.")] = BASE_URL,
    api_version: Version = API_VERSION,
    subscribe: Annotated[
        bool, typer.Option("--subscribe", help="Subscribe the app to this account's callbacks.")
    ] = False,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Connect a WhatsApp Business Account. Its token, numbers and templates are checked with Meta first.

    Enter the callback URL and the verify token that it prints at Meta, in the app's WhatsApp settings.

    \b
    Examples:
      heliograph whatsapp account add 102290129340398 --app-id 1890 --subscribe --org "Acme Lda"
      heliograph whatsapp account add 102290129340398 --app-id 1890 --token-file token --app-secret-file secret
    """
    settings = settings_of(data_dir, needs_key=True)
    key = apps.seal_key(settings)

    async def work(conn: Connection) -> onboarding.Connected:
        actor = await operator(conn, org)
        is_given = bool(app_secret) or app_secret_file is not None
        known = await onboarding.known_app(conn, key, app_id, anew=is_given)
        given = _secret(token, token_file, "Token", "--token")
        secret = app_secret
        if is_given or known is None:
            secret = _secret(app_secret, app_secret_file, "App secret", "--app-secret")
        client = _client(base_url, api_version)
        try:
            return await onboarding.connect(
                conn,
                key,
                client,
                organization_id=actor.organization_id,
                app_id=app_id,
                app_secret=secret,
                verify_token=verify_token,
                waba_id=waba_id,
                token=given,
                currency=currency,
                base_url=base_url,
                api_version=api_version,
                name=name,
                subscribe=subscribe,
                by=shell(),
            )
        finally:
            await client.close()

    made = on_database(work, settings)
    for note in made.notes:
        say(note)
    if not json:
        say("At Meta, in the app's WhatsApp settings, enter the callback URL and the verify token, and subscribe to")
        say(f"{', '.join(onboarding.FIELDS[:-1])} and {onboarding.FIELDS[-1]}.")
    record = {
        "id": made.account.id,
        "waba_id": made.account.waba_id,
        "name": made.account.name,
        "currency": made.account.currency,
        "credential_status": made.account.credential_status,
        "subscribed": made.account.subscribed,
        "numbers": [one.display for one in made.reading.numbers or ()],
        # Those of an account that was removed and is added again are known already.
        "templates": made.changed.templates.added + made.changed.templates.changed,
        "callback_url": apps.callback_url(settings, made.app.id),
        "verify_token": made.app.verify_token,
    }
    show(record, json)


@app.command("list")
def list_accounts(org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """List an organization's accounts: credential, holds and time of the last sync.

    \b
    Example:
      heliograph whatsapp account list
    """

    async def work(conn: Connection) -> list[dict[str, Any]]:
        return await onboarding.accounts_of(conn, (await operator(conn, org)).organization_id)

    show(on_database(work, settings_of(data_dir)), json, COLUMNS)


@app.command("show")
def show_account(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Show an account, with the callback URL and the verify token to enter at Meta.

    \b
    Example:
      heliograph whatsapp account show 102290129340398
    """
    settings = settings_of(data_dir, needs_key=True)

    async def work(conn: Connection) -> dict[str, Any]:
        return await _shown(conn, settings, (await operator(conn, org)).organization_id, which)

    show(on_database(work, settings), json)


@app.command("update")
def update(
    which: Which,
    token: Annotated[
        str | None, typer.Option(metavar="SECRET", help="New token; command lines are visible to other users.")
    ] = None,
    token_file: TokenFile = None,
    app_secret: Annotated[
        str | None,
        typer.Option(metavar="SECRET", help="The app's new secret; the old one stays valid for another 7 days."),
    ] = None,
    app_secret_file: SecretFile = None,
    verify_token: Annotated[str | None, typer.Option(metavar="TEXT", help="The app's new verify token.")] = None,
    name: Annotated[str | None, typer.Option(help="New name.")] = None,
    base_url: Annotated[str | None, typer.Option(metavar="URL", help="New base URL of the Graph API.")] = None,
    api_version: Annotated[str | None, typer.Option(metavar="VERSION", help="New version of the Graph API.")] = None,
    subscribe: Annotated[
        bool, typer.Option("--subscribe", help="Subscribe the app to this account's callbacks.")
    ] = False,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Update an account. A new token is checked with Meta first; messages that were waiting for it are then sent.

    The app's secret and verify token are shared by all accounts of the app.

    \b
    Examples:
      heliograph whatsapp account update 102290129340398 --token-file token
      heliograph whatsapp account update shop --app-secret-file - < secret
    """
    settings = settings_of(data_dir, needs_key=True)
    key = apps.seal_key(settings)
    new_token = _given(token, token_file, "Token", "--token")
    new_secret = _given(app_secret, app_secret_file, "App secret", "--app-secret")

    async def work(conn: Connection) -> dict[str, Any]:
        organization_id = (await operator(conn, org)).organization_id
        found = await onboarding.find_account(conn, organization_id, which)
        async with conn.transaction():
            if new_secret is not None or verify_token is not None:
                app_id, _ = await apps.shown(conn, key, found.app)
                await apps.change_app(
                    conn, key, app_id=app_id, app_secret=new_secret, verify_token=verify_token, by=shell()
                )
            if name is not None or base_url is not None or api_version is not None:
                found = await accounts.update(
                    conn,
                    key,
                    organization_id=organization_id,
                    account_id=found.id,
                    name=name,
                    base_url=base_url,
                    api_version=api_version,
                    by=shell(),
                )
        client = _client(found.base_url, found.api_version)
        try:
            if new_token is not None:
                reading, _ = await onboarding.change_token(
                    conn, key, client, account=found, token=new_token, by=shell()
                )
                for note in sync.problems_of(reading):
                    say(note)
            if subscribe:
                await onboarding.subscribe(conn, key, client, account=found, by=shell())
        finally:
            await client.close()
        return await _shown(conn, settings, organization_id, str(found.id))

    show(on_database(work, settings), json)


@app.command("pause")
def pause(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Pause an account: nothing is sent from its numbers until it is resumed. Inbound messages are still received.

    \b
    Example:
      heliograph whatsapp account pause 102290129340398
    """
    _set_state(which, "paused", org, json, data_dir)


@app.command("resume")
def resume(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Resume a paused account.

    \b
    Example:
      heliograph whatsapp account resume 102290129340398
    """
    _set_state(which, "active", org, json, data_dir)


@app.command("release")
def release(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Release a hold of an account and its numbers now that its cause is resolved. A few messages are sent first as a
    test.

    \b
    Example:
      heliograph whatsapp account release 102290129340398
    """

    async def work(conn: Connection) -> dict[str, Any]:
        organization_id = (await operator(conn, org)).organization_id
        found = await onboarding.find_account(conn, organization_id, which)
        released = await holds.release_account(conn, organization_id, found.id, by=shell())
        return {"id": found.id, "waba_id": found.waba_id, "name": found.name, "released": released}

    show(on_database(work, settings_of(data_dir)), json)


@app.command("acknowledge")
def acknowledge(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Dismiss Meta's warnings about an account once they are resolved. If Meta repeats one, it reappears.

    \b
    Example:
      heliograph whatsapp account acknowledge 102290129340398
    """

    async def work(conn: Connection) -> list[dict[str, Any]]:
        organization_id = (await operator(conn, org)).organization_id
        found = await onboarding.find_account(conn, organization_id, which)
        taken = await warnings.acknowledge(conn, organization_id, found.id, by=shell())
        return [{"waba_id": found.waba_id, "warning": kind, "detail": detail} for kind, detail in taken]

    show(on_database(work, settings_of(data_dir)), json, ("waba_id", "warning", "detail"))


@app.command("remove")
def remove(
    which: Which,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Remove an account and its token. Its messages are kept; if it is added again, its numbers keep their ids.

    Callbacks for it no longer match anything, so pause it for a day first: otherwise what was just sent ends as
    expired, and is refunded, although it may have been delivered.

    \b
    Example:
      heliograph whatsapp account remove 102290129340398 --yes
    """
    if not yes:
        on_database(lambda conn: _found(conn, org, which), settings_of(data_dir))
        confirm(f"Remove WhatsApp account {which}?")
    _set_state(which, "removed", org, json, data_dir)


async def _found(conn: Connection, org: str | None, which: str) -> tuple[UUID, BusinessAccount]:
    organization_id = (await operator(conn, org)).organization_id
    return organization_id, await onboarding.find_account(conn, organization_id, which)


def _set_state(which: str, state: str, org: str | None, json: bool, data_dir: DataDir) -> None:
    async def work(conn: Connection) -> dict[str, Any]:
        organization_id, found = await _found(conn, org, which)
        changed = await accounts.set_state(
            conn, organization_id=organization_id, account_id=found.id, state=state, by=shell()
        )
        return {"id": changed.id, "waba_id": changed.waba_id, "name": changed.name, "state": changed.state}

    show(on_database(work, settings_of(data_dir)), json)


async def _shown(conn: Connection, settings: Settings, organization_id: UUID, which: str) -> dict[str, Any]:
    found = await onboarding.find_account(conn, organization_id, which)
    _, verify_token = await apps.shown(conn, apps.seal_key(settings), found.app)
    (row,) = [one for one in await onboarding.accounts_of(conn, organization_id) if one["id"] == found.id]
    return row | {"callback_url": apps.callback_url(settings, found.app), "verify_token": verify_token}


def _client(base_url: str, api_version: str) -> CloudClient:
    try:
        return CloudClient(base_url, api_version)
    except SettingsError as error:
        raise typer.BadParameter(str(error), param_hint="--base-url") from None


def _given(value: str | None, file: Path | None, prompt: str, option: str) -> str | None:
    """A secret, if one was given in any way."""
    return None if value is None and file is None else _secret(value, file, prompt, option)


def _secret(value: str | None, file: Path | None, prompt: str, option: str) -> str:
    """Read from a file, the option, the terminal without echo, or the next line of stdin."""
    if file is not None and str(file) != "-":
        try:
            lines = file.read_text("utf-8-sig").splitlines()  # without the mark of some editors
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"{file}: {reason(error)}", param_hint=f"{option}-file") from None
        secret = lines[0].strip() if lines else ""
    elif value is not None and file is None:
        secret = value
    elif sys.stdin.isatty():
        secret = str(typer.prompt(prompt, hide_input=True, err=True))
    else:
        secret = line_on_stdin().strip()
    if not secret:
        raise typer.BadParameter(f"use {option}-file, or give a line on stdin", param_hint=option)
    return secret
