"""Where a check that is not well is looked into, whom it hits, and which of its remedies is one button.

By the name of a check and what stands in it: that of a supplier leads to its page, one of receipts to what does not
fit. The rule nobody may break: nothing is offered that the operator's role does not open, and what is one button takes
back what an operator did and loses nothing; what ends or changes something has a page that says so first.
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
from heliograph.people.operators.roles import CARRIAGE, CARRIAGE_CHANGE, SETTINGS
from heliograph.queue import waiting
from heliograph.queue.holds import Selection
from heliograph.queue.leases import GUARDED
from heliograph.queue.waiting import Sum, Waiting
from heliograph.whatsapp.mirror import onboarding

HEALTH = "/console/health"
#: Checks that are of one thing, by their names; all others are looked into on Health.
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
#: Checks that name a supplier, or an account at Meta.
OF_SUPPLIER = ("supplier %(name)s", "answers of %(name)s", "receipts of %(name)s", "certificate of %(whose)s")
OF_ACCOUNT = ("whatsapp %(id)s", "whatsapp %(id)s warnings")
#: Checks that hold everything up that waits; and that of an operator's holds, which hold up what they name.
HOLDING_UP, HOLDS = ("queue", "workers", "suppliers"), "holds"
#: Organizations that are named of those that a check hits; lines of the queue, and rows that are counted for that.
NAMED, LINES, LOOK = 5, 100, 2_000
#: Buttons of one check: more workers or holds than these are on their page.
MOST = 3


class Act(msgspec.Struct, frozen=True):
    """Something that is done at once. `of`: what it is done to, where a check is about several."""

    label: str
    path: str
    of: str = ""


class Hit(msgspec.Struct, frozen=True):
    """Whose messages wait for it: `rows`, at least where there `is_more`, of these organizations, NAMED of those that
    have most, and of so many `others`."""

    rows: int
    is_more: bool
    organizations: Sequence[str]
    others: int = 0


class Lead(msgspec.Struct, frozen=True):
    """Where a check is looked into, "" where this operator may not, where the runbook has it, what can be done at once,
    and whom it hits; None: nothing waits for it."""

    path: str
    runbook: str
    acts: Sequence[Act] = ()
    hit: Hit | None = None


class Known(msgspec.Struct, frozen=True):
    """What the names in checks stand for."""

    now: Now
    #: By its id at Meta, as `onboarding.standing` has it.
    accounts: Mapping[str, Mapping[str, Any]]
    #: What waits, by kind, line and organization.
    waiting: Sequence[Waiting]
    #: Of that, what the guard holds.
    guarded: Sequence[Waiting]


async def known(conn: Connection, now: Now, checks: Iterable[Check]) -> Known:
    """Each is asked for only where a check is about it."""
    names = {english(one.check) for one in checks}
    accounts = await onboarding.standing(conn) if names & set(OF_ACCOUNT) else []
    found: Sequence[Waiting] = ()
    if any(now.queued.values()) and names & {*HOLDING_UP, HOLDS, *OF_SUPPLIER, *OF_ACCOUNT}:
        found = await _waiting(conn, Selection())
    guarded = await _waiting(conn, Selection(kinds=("sms",), line=GUARDED)) if "guard" in names else ()
    return Known(now, {one["waba_id"]: one for one in accounts}, found, guarded)


async def _waiting(conn: Connection, which: Selection) -> Sequence[Waiting]:
    """At most LOOK rows of it are counted; which of them are past their validity is asked of none."""
    return (await waiting.summary(conn, which, limit=LINES, look=LOOK, places=LINES)).waiting


def lead(request: Request, check: Check, known: Known) -> Lead:
    """Where this check leads this operator."""
    path, acts = _whither(request, check, known)
    permission = SETTINGS if path == PLACES["mail"] else CARRIAGE
    return Lead(
        path if request.may(permission=permission) else "",
        runbook.address(check.check),
        acts if request.may(permission=CARRIAGE_CHANGE) else (),
        _hit(check, known),
    )


def _hit(check: Check, known: Known) -> Hit | None:
    """Of a supplier or account, those who wait for it; of an operator's holds and the guard's, those whose messages
    they hold; of what holds everything up, those who wait for anything."""
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


def _of(sums: Sequence[Sum], *, only_held: bool = False) -> Hit | None:
    counts = {one.who[0]: count for one in sums if (count := one.held if only_held else one.rows)}
    if not counts:
        return None
    names = sorted(counts, key=lambda name: (-counts[name], name))
    is_more = any(one.is_more for one in sums)
    return Hit(sum(counts.values()), is_more, names[:NAMED], len(names) - len(names[:NAMED]))


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
    """To its own page; what does not fit of receipts to where that is mended."""
    one = next((one for one in known.now.suppliers if one.name == name), None)
    if one is None:
        # The database has certificates too; of suppliers, the first hundred are known here.
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
