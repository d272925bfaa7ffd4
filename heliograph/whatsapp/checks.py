"""Checks of WhatsApp: tokens, holds and subscriptions of accounts; overdue callbacks and dead letters."""

from __future__ import annotations

import shlex
from typing import Any

from heliograph.base.crypto import Key, Unsealable
from heliograph.base.database.pool import Connection
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import LATE, Check, Sentence, kept, quoted, said
from heliograph.queue import leases
from heliograph.whatsapp.callbacks import dead_letters, intake
from heliograph.whatsapp.mirror import accounts, apps, onboarding

#: Codes of failures before Meta answered (`http.answers.FailureKind`).
UNREACHED = frozenset({"dns", "connect", "tls", "timeout", "closed"})


async def run(conn: Connection, settings: Settings) -> list[Check]:
    """One result for each account, for Meta's warnings, and for the callbacks."""
    return [*await _accounts(conn, settings), await _callbacks(conn)]


async def _accounts(conn: Connection, settings: Settings) -> list[Check]:
    key = apps.seal_key(settings) if settings.secret_key else None
    found = await onboarding.standing(conn)
    if not found:
        return [Check(said("whatsapp"), "ok", said("none connected"))]
    return [check for one in found for check in of_account(one, key)]


def of_account(one: dict[str, Any], key: Key | None) -> list[Check]:
    """The state of an account listed by `onboarding.standing`, in words, with remedies."""
    return [_account(one, key), *_warned(one)]


def _warned(one: dict[str, Any]) -> list[Check]:
    if not one["warnings"]:
        return []
    remedy = said("Resolve it with Meta, then run `%(command)s`.", command=_command("acknowledge", one))
    return [Check(said("whatsapp %(id)s warnings", id=one["waba_id"]), "warning", quoted(one["warnings"]), remedy)]


def _account(one: dict[str, Any], key: Key | None) -> Check:
    """One WhatsApp account: first problems with sending, then with receiving."""
    name = said("whatsapp %(id)s", id=one["waba_id"])
    update = _command("update", one)
    try:
        if key is not None:
            accounts.open_token(key, one["id"], one["token"])
    except Unsealable:
        remedy = said(
            "Start with the secret key it was added with, or run `%(command)s --app-secret-file FILE --token-file"
            " FILE`.",
            command=update,
        )
        return Check(name, "failed", said("its token was encrypted with another secret key"), remedy)
    if one["state"] == "paused":
        remedy = said("Run `%(command)s` to send from its numbers again.", command=_command("resume", one))
        return Check(name, "warning", said("paused"), remedy)
    # A token that a message found to be rejected has been put on hold; the detail comes with the next sync.
    status, detail = one["credential_status"], kept(one["credential_detail"] or one["held_reason"] or "")
    new_token = said("Run `%(command)s --token-file FILE`.", command=update)
    if status == "invalid":
        return Check(name, "failed", said("Meta rejects its token: %(detail)s", detail=detail), new_token)
    if one["held_reason"]:
        remedy = said(
            "Resolve it with Meta. Waiting messages are then sent automatically, or immediately after `%(command)s`.",
            command=_command("release", one),
        )
        return Check(name, "warning", said("held: %(reason)s", reason=kept(one["held_reason"])), remedy)
    if status == "missing_scope":
        return Check(
            name, "warning", said("its token lacks permissions: %(detail)s", detail=detail), said("Grant them at Meta.")
        )
    if status == "expiring":
        return Check(name, "warning", said("its token expires at %(at)s", at=one["credential_expires_at"]), new_token)
    if one["wallet_currency"] is not None:
        detail = said(
            "its prices are in %(currency)s, but the organization's wallet is in %(wallet)s, so none of its messages"
            " can be paid for",
            currency=one["currency"],
            wallet=one["wallet_currency"],
        )
        remedy = said(
            "Run `%(command)s`, then add it again with `--currency %(wallet)s` and rates in that currency.",
            command=_command("remove", one),
            wallet=one["wallet_currency"],
        )
        return Check(name, "warning", detail, remedy)
    if one["subscribed"] is False:
        remedy = said("Run `%(command)s --subscribe`.", command=update)
        return Check(name, "warning", said("the app is not subscribed to its callbacks"), remedy)
    if one["unsigned_at"] is not None:
        detail = said(
            "callbacks arrive that are not signed with the app's secret, the last at %(at)s", at=one["unsigned_at"]
        )
        remedy = said(
            "If they are Meta's, the secret was changed there: enter the new one, on the account's page or by "
            "`%(command)s --app-secret-file FILE`.",
            command=update,
        )
        return Check(name, "warning", detail, remedy)
    if not one["called_back"]:
        remedy = said("Enter at Meta what `%(command)s` prints.", command=_command("show", one))
        return Check(name, "warning", said("no callback from Meta has ever arrived"), remedy)
    if one["mirror_detail"]:
        return Check(name, "warning", *_not_read(one))
    is_known = status != "unknown"
    return Check(name, "ok", said("its token is valid") if is_known else said("its token has not been checked yet"))


def _not_read(one: dict[str, Any]) -> tuple[Sentence, Sentence]:
    """What kept the last sync from ending, of which each problem is `what: code detail`; and the remedy."""
    problems = [problem.partition(": ")[2].partition(" ") for problem in one["mirror_detail"].split("; ")]
    if all(code in UNREACHED for code, _, _ in problems):
        remedy = said(
            "Check the way from this machine to %(url)s: DNS, firewall, proxy, certificates. Numbers and templates are "
            "as of the last sync, which is being retried.",
            url=one["base_url"],
        )
        return said("Meta cannot be reached from here: %(error)s", error=problems[0][2] or problems[0][0]), remedy
    return (
        said("the last sync with Meta failed: %(error)s", error=one["mirror_detail"]),
        said("Numbers and templates are as of the last sync, which is being retried."),
    )


def _command(what: str, one: dict[str, Any]) -> str:
    """A command about an account, to be copied into a shell: it works wherever there are several organizations."""
    return f"heliograph whatsapp account {what} {one['waba_id']} --org {shlex.quote(one['organization'])}"


async def _callbacks(conn: Connection) -> Check:
    late = await leases.oldest(conn, intake.KIND)
    if late > LATE:
        detail = said("callbacks from Meta are %(seconds)s s overdue", seconds=round(late))
        return Check(said("callbacks"), "failed", detail, said("Start a worker."))
    aside = await dead_letters.count(conn)
    if aside:
        remedy = said("See `heliograph whatsapp inbound dead-letters`.")
        detail = (
            said("callback items that could not be applied: %(count)s", count=aside)
            if aside <= dead_letters.COUNTED
            else said("callback items that could not be applied: more than %(count)s", count=dead_letters.COUNTED)
        )
        return Check(said("callbacks"), "warning", detail, remedy)
    return Check(said("callbacks"), "ok", said("all callbacks from Meta are processed"))
