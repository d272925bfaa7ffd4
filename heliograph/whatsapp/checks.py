"""What can be wrong with WhatsApp: tokens, holds, subscriptions of accounts; overdue callbacks and dead letters."""

from __future__ import annotations

from typing import Any

from heliograph.base.checks import LATE, Check
from heliograph.base.crypto import Key, Unsealable
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection
from heliograph.base.process.settings import Settings
from heliograph.queue import leases
from heliograph.whatsapp.callbacks import dead_letters, intake
from heliograph.whatsapp.mirror import accounts, apps, onboarding


async def look(conn: Connection, settings: Settings) -> list[Check]:
    """One result for each account, for Meta's warnings, and for the callbacks."""
    return [*await _accounts(conn, settings), await _callbacks(conn)]


async def _accounts(conn: Connection, settings: Settings) -> list[Check]:
    key = apps.seal_key(settings) if settings.secret_key else None
    found = await onboarding.standing(conn)
    if not found:
        return [Check("whatsapp", "ok", "none connected")]
    return [check for one in found for check in of_account(one, key)]


def of_account(one: dict[str, Any], key: Key | None) -> list[Check]:
    """How an account stands, of those that `onboarding.standing` lists, in words and with what to do."""
    return [_account(one, key), *_warned(one)]


def _warned(one: dict[str, Any]) -> list[Check]:
    if not one["warnings"]:
        return []
    waba_id = one["waba_id"]
    remedy = f"Resolve it with Meta, then run `heliograph whatsapp account acknowledge {waba_id}`."
    return [Check(f"whatsapp {waba_id} warnings", "warning", one["warnings"], remedy)]


def _account(one: dict[str, Any], key: Key | None) -> Check:
    """One WhatsApp account: first what keeps it from sending, then what keeps it from receiving."""
    name = f"whatsapp {one['waba_id']}"
    update = f'heliograph whatsapp account update {one["waba_id"]} --org "{one["organization"]}"'
    try:
        if key is not None:
            accounts.open_token(key, one["id"], one["token"])
    except Unsealable:
        remedy = f"Start with the secret key it was added with, or run `{update} --token-file FILE`."
        return Check(name, "failed", "its token was encrypted with another secret key", remedy)
    if one["state"] == "paused":
        remedy = f"Run `heliograph whatsapp account resume {one['waba_id']}` to send from its numbers again."
        return Check(name, "warning", "paused", remedy)
    status, detail = one["credential_status"], one["credential_detail"]
    if status == "invalid":
        return Check(name, "failed", f"Meta rejects its token: {detail}", f"Run `{update} --token-file FILE`.")
    if one["held_reason"]:
        remedy = (
            "Resolve it with Meta. Waiting messages then go out by themselves, or immediately after "
            f"`heliograph whatsapp account release {one['waba_id']}`."
        )
        return Check(name, "warning", f"held: {one['held_reason']}", remedy)
    if status == "missing_scope":
        return Check(name, "warning", f"its token lacks permissions: {detail}", "Grant them at Meta.")
    if status == "expiring":
        ends = f"its token expires at {one['credential_expires_at']:%Y-%m-%d %H:%M} UTC"
        return Check(name, "warning", ends, f"Run `{update} --token-file FILE`.")
    if one["subscribed"] is False:
        return Check(name, "warning", "Meta is not subscribed to send its callbacks", f"Run `{update} --subscribe`.")
    if one["unsigned_at"] is not None:
        detail = f"callbacks come that are not signed with the app's secret, the last at {iso(one['unsigned_at'])}"
        remedy = f"If they are Meta's, the secret was changed there: run `{update} --app-secret-file FILE`."
        return Check(name, "warning", detail, remedy)
    if not one["called_back"]:
        remedy = f"Enter at Meta what `heliograph whatsapp account show {one['waba_id']}` prints."
        return Check(name, "warning", "no callback from Meta has ever arrived", remedy)
    if one["mirror_detail"]:
        remedy = "Numbers and templates are as of the last sync, which is being retried."
        return Check(name, "warning", f"the last sync with Meta failed: {one['mirror_detail']}", remedy)
    return Check(name, "ok", "its token has not been checked yet" if status == "unknown" else "its token is valid")


async def _callbacks(conn: Connection) -> Check:
    late = await leases.oldest(conn, intake.KIND)
    if late > LATE:
        return Check("callbacks", "failed", f"callbacks from Meta are {late:.0f} s overdue", "Start a worker.")
    aside = await dead_letters.count(conn)
    if aside:
        remedy = "See `heliograph whatsapp inbound dead-letters`."
        return Check("callbacks", "warning", f"{aside} callback items could not be applied", remedy)
    return Check("callbacks", "ok", "all callbacks from Meta are processed")
