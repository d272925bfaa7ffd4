"""What can be wrong with SMS: suppliers without a session, unmatched receipts, unassigned messages."""

from __future__ import annotations

from heliograph.base.checks import LATE, Check
from heliograph.base.crypto import Unsealable
from heliograph.base.database.pool import Connection
from heliograph.base.process.settings import Settings
from heliograph.queue.leases import GUARDED
from heliograph.sms.dispatch import routing, suppliers
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.received import inbound
from heliograph.sms.reports import diagnosis, remedies, words


async def look(conn: Connection, settings: Settings) -> list[Check]:
    """One result for each supplier, for receipts that are not understood, and for the inbox."""
    return [*await _suppliers(conn, settings), await _inbox(conn), *await _held(conn)]


async def _suppliers(conn: Connection, settings: Settings) -> list[Check]:
    found = await routing.load(conn)
    if not found:
        remedy = "Add one with `heliograph supplier add smpp`; until then only messages of test keys are sent."
        return [Check("suppliers", "warning", "none configured", remedy)]
    held = await suppliers.sessions(conn)
    key = suppliers.seal_key(settings) if settings.secret_key else None
    serve = {one.id for one in routing.serving(found)}
    checks = []
    for one in found:
        name = f"supplier {one.name}"
        _, bound, error = held.get(one.id, (0, 0, ""))
        if one.state != "active":
            remedy = f"Run `heliograph supplier resume {one.name}` to send through it again."
            checks.append(Check(name, "warning", one.state, remedy))
            continue
        try:
            if key is not None:
                suppliers.open_secret(key, one)
        except Unsealable:
            remedy = "Start with the secret key it was added with, or remove it and add it again."
            checks.append(Check(name, "failed", "its password was encrypted with another secret key", remedy))
            continue
        if one.simulated:
            checks.append(_simulator(one, bound, serves=one.id in serve))
        elif bound:
            checks.append(Check(name, "ok", f"{bound} of {one.sessions} sessions bound"))
        else:
            remedy = "Start a worker if none is running; otherwise check the address, system_id and password."
            checks.append(Check(name, "failed", f"no session bound{(': ' + error if error else '')}", remedy))
    return checks + await _receipts(conn, settings, found)


async def _receipts(conn: Connection, settings: Settings, found: list[Supplier]) -> list[Check]:
    """Receipts that match nothing, do not come, or have unknown states."""
    checks = await remedies.check(conn, settings, found)
    known = {one.id: one for one in found}
    for advice in await diagnosis.advise(conn):
        wanted = " and ".join(f"{name}={base}" for name, base in advice.settings.items())
        detail = f"{advice.looked} match no message; {advice.fitting} of them would match with {wanted}"
        checks.append(Check(f"receipts of {advice.supplier}", "failed", detail, f"`{advice.command}`"))
    for id, unknown in (await words.unknown_states(conn)).items():
        if id in known:
            said = ", ".join(f"{one.word} ({one.count})" for one in unknown[:10])
            setting = words.state_setting(known[id])
            if setting is None:
                remedy = "No setting says what they mean: the file of this kind of supplier has to be extended."
            else:
                remedy = (
                    f"If one of them is a final state: {remedies.change(known[id], f'{setting}.WORD=undelivered')}."
                )
            checks.append(Check(f"receipts of {known[id].name}", "warning", f"unknown states: {said}", remedy))
    return checks


def _simulator(one: routing.Supplier, bound: int, *, serves: bool) -> Check:
    """A supplier that only pretends."""
    name = f"supplier {one.name}"
    if not serves:
        return Check(name, "ok", "a simulator: live messages go only to the other suppliers")
    if bound:
        return Check(name, "ok", f"a simulator: live messages reach nobody; {bound} of {one.sessions} sessions bound")
    return Check(name, "failed", "a simulator, no session bound", "Start a worker and the simulator.")


HELD = "SELECT count(*) FROM (SELECT FROM queue WHERE kind = 'sms' AND line = $1 LIMIT 10000) one"


async def _held(conn: Connection) -> list[Check]:
    """Messages that the guard holds wait for somebody to look."""
    held: int = await conn.fetchval(HELD, GUARDED)
    if not held:
        return []
    remedy = "`heliograph guard list` says which and why; `guard release` sends them, `guard withdraw` cancels them."
    return [Check("guard", "warning", f"{held:,} messages to suspicious ranges are held", remedy)]


async def _inbox(conn: Connection) -> Check:
    late, unassigned = await inbound.standing(conn)
    if late > LATE:
        return Check("inbox", "failed", f"inbound messages are {late:.0f} s overdue", "Start a worker.")
    if unassigned:
        detail = f"{unassigned} inbound messages went to numbers that belong to no organization, or to several"
        return Check("inbox", "warning", detail, "See `heliograph inbound list --unassigned`.")
    return Check("inbox", "ok", "every inbound message has been assigned to an organization")
