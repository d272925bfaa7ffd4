"""Where to investigate a check that is not ok, whom it affects, and which of its remedies are one button.

Decided by a check's name and its values: a supplier's leads to its page, one of receipts to unmatched receipts. The
rule nobody may break: nothing is offered that the operator's role does not permit, and a single button only reverts
what an operator did, and loses nothing; what ends or changes something has a page that says so first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.sentences import Check, english
from heliograph.console.engine import runbook
from heliograph.overview.installation.now import Now
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import SETTINGS, TRAFFIC, TRAFFIC_CHANGE
from heliograph.queue import waiting
from heliograph.queue.holds import Selection
from heliograph.queue.leases import GUARDED
from heliograph.queue.waiting import Waiting, WaitingTotal
from heliograph.whatsapp.mirror import onboarding

HEALTH = "/console/health"
#: Pages of checks with a page of their own, by name; all others are investigated on Health.
PLACES: Mapping[str, str] = {
    "suppliers": "/console/suppliers",
    "guard": "/console/guard",
    "inbox": "/console/inbound",
    "callbacks": "/console/whatsapp/callbacks",
    "whatsapp": "/console/whatsapp",
    "queue": "/console/queue",
    "holds": "/console/queue",
    "workers": "/console/queue",
    "mail": "/console/settings",
    "mails": "/console/settings",
}
#: Checks whose names contain a supplier, or an account at Meta.
OF_SUPPLIER = ("supplier %(name)s", "answers of %(name)s", "receipts of %(name)s", "certificate of %(whose)s")
OF_ACCOUNT = ("whatsapp %(id)s", "whatsapp %(id)s warnings")
#: Checks that block everything that waits; and that of operators' holds, which block only what they name.
HOLDING_UP, HOLDS = ("queue", "workers", "suppliers"), "holds"
#: Affected organizations named per check; queue lines, and rows, counted for that.
NAMED, LINES, LOOK = 5, 100, 2_000
#: Buttons per check; more workers or holds than this are on their own page.
MOST = 3


class Act(msgspec.Struct, frozen=True):
    """An action with a single button. `of`: its object, if a check is about several."""

    label: str
    path: str
    of: str = ""


class Affected(msgspec.Struct, frozen=True):
    """Whose messages wait because of it: `rows` of them (at least, if `is_more`) of these `organizations`, at most
    NAMED, those with the most first, and of the given number of `others`."""

    rows: int
    is_more: bool
    organizations: Sequence[str]
    others: int = 0


class Lead(msgspec.Struct, frozen=True):
    """`path`: where to investigate a check, "" if this operator may not; `runbook`: its section; `acts`: what can be
    done at once; `hit`: whom it affects, None: nothing waits because of it."""

    path: str
    runbook: str
    acts: Sequence[Act] = ()
    hit: Affected | None = None


class Known(msgspec.Struct, frozen=True):
    """What the names in checks refer to."""

    now: Now
    #: By id at Meta, as returned by `onboarding.standing`.
    accounts: Mapping[str, Mapping[str, Any]]
    #: What waits, by kind, line and organization.
    waiting: Sequence[Waiting]
    #: The part of that which the guard holds.
    guarded: Sequence[Waiting]


async def load(conn: Connection, now: Now, checks: Iterable[Check]) -> Known:
    """Query what the checks are about, and nothing else."""
    names = {english(one.check) for one in checks}
    accounts = await onboarding.standing(conn) if names & set(OF_ACCOUNT) else []
    found: Sequence[Waiting] = ()
    if any(now.queued.values()) and names & {*HOLDING_UP, HOLDS, *OF_SUPPLIER, *OF_ACCOUNT}:
        found = await _waiting(conn, Selection())
    guarded = await _waiting(conn, Selection(kinds=("sms",), line=GUARDED)) if "guard" in names else ()
    return Known(now, {one["waba_id"]: one for one in accounts}, found, guarded)


async def _waiting(conn: Connection, which: Selection) -> Sequence[Waiting]:
    """Counts at most LOOK rows, without checking which of them are past their validity."""
    return (await waiting.summary(conn, which, limit=LINES, look=LOOK, places=LINES)).waiting


def lead(request: Request, check: Check, known: Known) -> Lead:
    """Where this operator can investigate this check."""
    path, acts = _whither(request, check, known)
    permission = SETTINGS if path == PLACES["mail"] else TRAFFIC
    return Lead(
        path if request.may(permission=permission) else "",
        runbook.address(check.check),
        acts if request.may(permission=TRAFFIC_CHANGE) else (),
        _hit(check, known),
    )


def _hit(check: Check, known: Known) -> Affected | None:
    """For a supplier or account, those waiting for it; for operators' holds and the guard's, those whose messages they
    hold; for what blocks everything, those waiting for anything."""
    name, values = english(check.check), getattr(check.check, "values", {})
    if name == "guard":
        rows = list(known.guarded)
    elif name == OF_SUPPLIER[0]:
        rows = [one for one in known.waiting if one.kind == "sms" and one.line == values["name"]]
    elif name in OF_ACCOUNT:
        account = known.accounts.get(str(values["id"]))
        whose = account["organization"] if account else None
        rows = [one for one in known.waiting if one.kind == "whatsapp" and one.organization == whose]
    elif name in (*HOLDING_UP, HOLDS):
        rows = list(known.waiting)
    else:
        return None
    return _of(waiting.by_organization(rows), only_held=name == HOLDS)


def _of(sums: Sequence[WaitingTotal], *, only_held: bool = False) -> Affected | None:
    counts = {one.who[0]: count for one in sums if (count := one.held if only_held else one.rows)}
    if not counts:
        return None
    names = sorted(counts, key=lambda name: (-counts[name], name))
    is_more = any(one.is_more for one in sums)
    return Affected(sum(counts.values()), is_more, names[:NAMED], len(names) - len(names[:NAMED]))


def _whither(request: Request, check: Check, known: Known) -> tuple[str, list[Act]]:
    name, values = english(check.check), getattr(check.check, "values", {})
    if name in OF_SUPPLIER:
        return _supplier(request, check, known, str(next(iter(values.values()))))
    if name in OF_ACCOUNT:
        return _account(request, known, str(values["id"]), is_warned=name == OF_ACCOUNT[1])
    acts: list[Act] = []
    if name == "workers":
        label = request.text("Resume")
        acts = [
            Act(label, f"/console/queue/workers/{one.id}/resume", one.name)
            for one in known.now.workers
            if one.drain == "stay"
        ]
    return PLACES.get(name, HEALTH), acts[:MOST]


def _supplier(request: Request, check: Check, known: Known, name: str) -> tuple[str, list[Act]]:
    """To its own page; unmatched receipts to the page on which they are fixed."""
    one = next((one for one in known.now.suppliers if one.name == name), None)
    if one is None:
        # It may be the database's certificate, or a supplier beyond the first hundred, which are known here.
        return HEALTH if english(check.check) == OF_SUPPLIER[-1] else PLACES["suppliers"], []
    path, spoken_of = f"/console/suppliers/{one.id}", getattr(check.detail, "values", {})
    if "looked" in spoken_of:
        return request.to("/console/receipts/unmatched", supplier=name), []
    if "states" in spoken_of:
        return "/console/receipts/words", []
    is_stopped = english(check.check) == OF_SUPPLIER[0] and one.state != "active"
    return path, [Act(request.text("Resume"), f"{path}/resume")] if is_stopped else []


def _account(request: Request, known: Known, waba_id: str, *, is_warned: bool) -> tuple[str, list[Act]]:
    one = known.accounts.get(waba_id)
    if one is None:
        return PLACES["whatsapp"], []
    path = f"/console/whatsapp/accounts/{one['organization_id']}/{one['id']}"
    acts = []
    if one["state"] == "paused" and not is_warned:
        acts.append(Act(request.text("Resume"), f"{path}/resume"))
    elif one["held_reason"] and not is_warned:
        acts.append(Act(request.text("Release the hold"), f"{path}/release"))
    return path, acts
