"""The WhatsApp part of the operators' timeline (`sending/timeline.py`): Meta's ids, and wallet movements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database.pool import Connection
from heliograph.base.money import decimal
from heliograph.base.sentences import Sentence, said
from heliograph.queue import leases
from heliograph.sealing import text_keys
from heliograph.sending import timeline
from heliograph.sending.timeline import Source, Timeline
from heliograph.suppliers.whatsapp_cloud import errors
from heliograph.webhooks.timeline import Entry, known
from heliograph.whatsapp.accepting.accept import TABLE
from heliograph.whatsapp.callbacks.matching import accepted_on

# Meta's ids are found by the time of the answer, which their index (BRIN) narrows to a few pages of their month.
WAMIDS = """
SELECT DISTINCT w.wamid, w.created_at FROM unnest($3::timestamptz[]) AS answer (at) CROSS JOIN LATERAL (
       SELECT wamid, created_at FROM whatsapp_wamids
        WHERE organization_id = $1 AND message_id = $2 AND born_on = $4
          AND created_at BETWEEN answer.at - interval '5 s' AND answer.at + interval '5 s') w
"""
MONEY = """
SELECT movement, key, available, reserved, consumed, created_at FROM wallet_movements
 WHERE organization_id = $1 AND message_id = $2
"""
QUEUE = f"""
SELECT q.kind, q.due_at, q.tries, q.attempt, q.lane, q.lease_until, holder.name AS worker, q.begun_at,
       n.display_phone_number AS number,
       greatest(n.held_until, a.held_until) AS held_until,
       CASE WHEN n.held_until IS NULL OR a.held_until >= n.held_until THEN a.held_reason ELSE n.held_reason END AS held,
       e.url
  FROM queue q
  {leases.HOLDER}
  LEFT JOIN whatsapp_numbers n ON n.organization_id = $1 AND n.id = q.line
  LEFT JOIN whatsapp_accounts a ON a.organization_id = $1 AND a.id = n.account_id
  LEFT JOIN webhook_endpoints e ON e.organization_id = $1 AND e.id = q.line
 WHERE q.id = ANY ($2) ORDER BY q.due_at
"""


async def of_message(conn: Connection, *, id: UUID, with_text: bool = False, by: Principal = SYSTEM) -> Timeline:
    """The timeline of a message in either direction. Raises NotFound."""
    async with timeline.snapshot(conn):
        found = await timeline.of_message(conn, SOURCE, id=id, with_text=with_text, by=by)
        whose = found.message["organization_id"]
        text = (await text_keys.opened_of(conn, whose, TABLE, [(id, found.text)]))[id]
    amounts = {name: decimal(found.message[name]) for name in ("reserved", "consumed")}
    entries = [_explained(one) for one in _with_code(found)]
    message, evidence = found.message | amounts, _evident(found.message, entries)
    return msgspec.structs.replace(found, text=text, message=message, entries=entries, evidence=evidence)


def _with_code(found: Timeline) -> Iterable[Entry]:
    """The entries, with Meta's code where a status reported the failure."""
    code = found.message["failure_evidence"]
    for one in found.entries:
        is_failure = one.what == "status" and "failure" in one.detail
        yield Entry(one.at, one.what, one.detail | {"code": code}) if code and is_failure else one


def _evident(message: dict[str, Any], entries: Sequence[Entry]) -> Sentence | None:
    """Meta's explanation of the failure: from the status that reported it, or from its last answer."""
    if message["failure_code"] is None:
        return None
    said_of = [one.detail for one in entries if one.what in ("answer", "status") and "means" in one.detail]
    if not said_of:
        return None
    last = said_of[-1]
    return said("Meta's code %(code)s: %(means)s", code=last["code"], means=last["means"])


def _explained(one: Entry) -> Entry:
    """The entry with the meaning of Meta's code, and Meta's own words under `words`."""
    if one.what not in ("answer", "status"):
        return one
    detail = one.detail
    if (means := errors.meaning(detail.get("code", ""))) is None:
        return one
    told = {name: value for name, value in detail.items() if name != "detail"} | {"means": means}
    words = detail.get("detail")
    return Entry(one.at, one.what, known(told | {"words": None if words == means else words}))


async def _evidence(conn: Connection, row: asyncpg.Record, tried: Sequence[asyncpg.Record]) -> Iterable[Entry]:
    organization_id, id = row["organization_id"], row["id"]
    answers = list({one["ended_at"] for one in tried if one["ended_at"]})
    wamids = await conn.fetch(WAMIDS, organization_id, id, answers, accepted_on(id))
    return [
        *(Entry(one["created_at"], "wamid", {"wamid": one["wamid"]}) for one in wamids),
        *_doubled(wamids),
        *(_money(one) for one in await conn.fetch(MONEY, organization_id, id)),
    ]


def _doubled(wamids: Iterable[asyncpg.Record]) -> Iterable[Entry]:
    """A message with two of Meta's ids was sent twice: a worker was suspended for longer than its lease."""
    in_order = sorted(wamids, key=lambda one: one["created_at"])
    for one in in_order[1:]:
        yield Entry(one["created_at"], "sent twice", {"wamids": [in_order[0]["wamid"], one["wamid"]]})


def _money(row: asyncpg.Record) -> Entry:
    amounts = {name: decimal(row[name]) for name in ("available", "reserved", "consumed") if row[name]}
    return Entry(row["created_at"], "money", known({"movement": row["movement"], "key": row["key"]} | amounts))


#: Statuses that may raise an event.
STATES = ("sent", "delivered", "read", "failed")
SOURCE = Source(
    message=timeline.by_id(
        TABLE,
        columns=", n.display_phone_number",
        join="LEFT JOIN whatsapp_numbers n ON n.organization_id = o.id AND n.id = found.number_id",
    ),
    text="content",
    states=[*((f"{name}_at", name) for name in STATES), ("canceled_at", "canceled")],
    # Meta reports when something happened; the event is created when we learn of it.
    told_at=[f"{name}_at" for name in STATES],
    around=(timedelta(seconds=2), timedelta(minutes=2)),
    queue=QUEUE,
    evidence=_evidence,
    failures="whatsapp_failure",
    under_way="queued",
)
