"""Checks of SMS: suppliers without a session, unmatched receipts, unassigned messages, keys of texts."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Collection, Iterable, Sequence

from heliograph.base.crypto import Key, Unsealable
from heliograph.base.database.pool import Connection
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import LATE, Check, Sentence, english, kept, quoted, said
from heliograph.queue.leases import GUARDED
from heliograph.sealing import text_keys
from heliograph.sms.dispatch import routing, suppliers
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.received import inbound
from heliograph.sms.reports import diagnosis, remedies, words
from heliograph.suppliers import kinds
from heliograph.suppliers.contract import NO_WORD


def of_suppliers(found: Iterable[Check], names: Collection[str]) -> dict[str, list[Check]]:
    """The results that concern each of the suppliers with these names."""
    listed: dict[str, list[Check]] = {name: [] for name in names}
    # Sentences are built once per name, not per pair: 50 suppliers in trouble blocked the event loop for 50 ms.
    of = {
        words: name
        for name in names
        for words in (
            said("supplier %(name)s", name=name),
            said("receipts of %(name)s", name=name),
            said("answers of %(name)s", name=name),
        )
    }
    for one in found:
        if (name := of.get(one.check)) is not None:
            listed[name].append(one)
    return listed


#: Subjects of checks, by the checks' names.
_SUBJECTS = {"supplier %(name)s": "supplier", "receipts of %(name)s": "receipts"}


def subject(check: Check) -> str:
    """Whether a check concerns a "supplier" or its "receipts"; "": something else."""
    return _SUBJECTS.get(check.check.english, "")


async def run(conn: Connection, settings: Settings) -> list[Check]:
    """One result for each supplier, for receipts that are not understood, for the inbox, for held messages, and for
    sealed texts."""
    return [*await _suppliers(conn, settings), await _inbox(conn), *await _held(conn), *await _texts(conn)]


async def compare(conn: Connection, settings: Settings) -> list[Check]:
    """Checks that read thousands of messages: suppliers whose delivered codes are rarely entered."""
    return await remedies.compare(conn, await routing.load(conn))


async def _suppliers(conn: Connection, settings: Settings) -> list[Check]:
    found = await routing.load(conn)
    if not found:
        remedy = said("Add one with `heliograph supplier add smpp`; until then only messages of test keys are sent.")
        return [Check(said("suppliers"), "warning", said("none configured"), remedy)]
    return await sessions(conn, settings, found) + await _receipts(conn, settings, found)


async def sessions(conn: Connection, settings: Settings, found: Sequence[Supplier]) -> list[Check]:
    """One result for each of the suppliers: whether it is used and has a session."""
    held, deaf = await suppliers.sessions(conn), await suppliers.deaf(conn)
    key = suppliers.seal_key(settings) if settings.secret_key else None
    serve = {one.id for one in routing.serving(found)}
    checks = []
    for one in found:
        leased, bound, error = held.get(one.id, suppliers.UNHELD)
        if not leased and one.state == "active":  # nobody has a slot in which to report it
            error = await asyncio.to_thread(kinds.unusable, one.kind, one.settings)
        checks.append(_session(one, key, one.id in serve, leased, bound, deaf.get(one.id, 0), error))
    return checks


def _session(
    one: Supplier, key: Key | None, serves: bool, leased: int, bound: int, deaf: int, error: Sentence
) -> Check:
    name = said("supplier %(name)s", name=one.name)
    if one.simulated and not serves:
        # Whether it is paused makes no difference: resuming it would send nothing through it.
        return Check(name, "ok", said("a simulator: live messages go only to the other suppliers"))
    if one.state != "active":
        remedy = said("Run `heliograph supplier resume %(name)s` to send through it again.", name=shlex.quote(one.name))
        return Check(name, "warning", kept(one.state), remedy)
    try:
        if key is not None:
            suppliers.open_secret(key, one)
    except Unsealable:
        remedy = said(
            "Start with the secret key it was added with, or run `heliograph supplier set %(name)s --ask-password`.",
            name=shlex.quote(one.name),
        )
        return Check(name, "failed", said("its password was encrypted with another secret key"), remedy)
    if one.simulated:
        return _simulator(one, bound)
    if deaf:
        remedy = _unreached(error) or said(
            "Receipts and handsets' messages arrive at receivers only. Ask how many binds the account may have, "
            "since a pair counts as two, or set bind=transceiver."
        )
        detail = said("%(deaf)s of %(bound)s sessions have no receiver: %(error)s", deaf=deaf, bound=bound, error=error)
        return Check(name, "failed", detail, remedy)
    if error and 0 < bound < leased:
        remedy = _unreached(error) or said(
            "Ask how many binds the account may have, and reduce `sessions` if it is fewer: the others are tried again "
            "forever."
        )
        detail = said("%(bound)s of %(all)s sessions bound: %(error)s", bound=bound, all=one.sessions, error=error)
        return Check(name, "warning", detail, remedy)
    if bound:
        return Check(name, "ok", said("%(bound)s of %(all)s sessions bound", bound=bound, all=one.sessions))
    remedy = _unreached(error) or said(
        "Start a worker if none is running; otherwise check the address and credentials of the account."
    )
    detail = said("no session bound: %(error)s", error=error) if error else said("no session bound")
    return Check(name, "failed", detail, remedy)


#: How sessions end that fell silent, by the English of what they say (`suppliers/smpp/session.py`, `link.py`).
_SILENT = frozenset(
    {
        "no answer to %(what)s",
        "%(count)s submits in a row without an answer",
        "the peer reads nothing",
        "a PDU was not completed in time",
    }
)


def _unreached(error: Sentence) -> Sentence:
    """The remedy if an account cannot be connected to, not even tried, or says nothing, which neither credentials nor
    the number of sessions explain; otherwise ""."""
    if english(error) == "cannot connect: %(why)s":
        return said(
            "Check its host, port and TLS settings, and whether the supplier allows this machine's address: “Test the "
            "connection” on its page shows which step fails."
        )
    if english(error) == "%(setting)s cannot be used: %(why)s":
        return said("Correct the setting, or the file.")
    if error == "no answer to bind":
        return said(
            "It accepts connections but answers nothing: check that the port is the one for SMPP, and whether the "
            "supplier requires TLS. If it worked before, ask the supplier whether its SMSC hangs."
        )
    if english(error) in _SILENT:
        return said(
            "Workers reconnect by themselves. If it happens again, ask the supplier whether its SMSC hangs, and check "
            "whether a firewall or VPN drops idle connections: `enquire_seconds` has to be shorter than its limit."
        )
    return quoted("")


async def _receipts(conn: Connection, settings: Settings, found: list[Supplier]) -> list[Check]:
    """Receipts that match nothing, do not arrive, or have unknown states."""
    checks = await remedies.check(conn, settings, found)
    known = {one.id: one for one in found}
    for advice in await diagnosis.advise(conn):
        detail = said(
            "%(looked)s match no message; %(fitting)s of them would match with %(settings)s",
            looked=advice.looked,
            fitting=advice.fitting,
            settings=", ".join(f"{name}={base}" for name, base in advice.settings.items()),
        )
        name = said("receipts of %(name)s", name=advice.supplier)
        checks.append(Check(name, "failed", detail, quoted(f"`{advice.command}`")))
    for id, unknown in (await words.unknown_states(conn)).items():
        if id in known:
            states = ", ".join(f"{one.word} ({one.count})" for one in unknown[:10])
            setting = words.state_setting(known[id])
            if setting is None:
                remedy = said("No setting says what they mean: the file of this kind of supplier has to be extended.")
            elif setting == "receipt_states" and any(one.word == NO_WORD for one in unknown):
                command = remedies.change(known[id], "receipt_state_at=PLACE")
                remedy = said(
                    "Receipts have no state at `receipt_state_at`. Correct that: %(command)s.", command=command
                )
            else:
                command = remedies.change(known[id], f"{setting}.WORD=undelivered")
                remedy = said("If one of them is a final state: %(command)s.", command=command)
            name = said("receipts of %(name)s", name=known[id].name)
            checks.append(Check(name, "warning", said("unknown states: %(states)s", states=states), remedy))
    return checks


def _simulator(one: routing.Supplier, bound: int) -> Check:
    """The result for a simulator that carries live messages."""
    name = said("supplier %(name)s", name=one.name)
    if bound:
        detail = said(
            "a simulator: live messages reach nobody; %(bound)s of %(all)s sessions bound",
            bound=bound,
            all=one.sessions,
        )
        return Check(name, "ok", detail)
    return Check(name, "failed", said("a simulator, no session bound"), said("Start a worker and the simulator."))


HELD = "SELECT count(*) FROM (SELECT FROM queue WHERE kind = 'sms' AND line = $1 LIMIT 10000) one"


async def _held(conn: Connection) -> list[Check]:
    """Messages held by the guard, which wait for an operator."""
    held: int = await conn.fetchval(HELD, GUARDED)
    if not held:
        return []
    remedy = said(
        "`heliograph guard list` says which and why; `guard release` sends them, `guard withdraw` cancels them."
    )
    return [Check(said("guard"), "warning", said("held messages to suspicious ranges: %(count)s", count=held), remedy)]


#: Number of organizations named; the rest are counted.
NAMED = 5


async def _texts(conn: Connection) -> list[Check]:
    """Organizations that seal their texts but whose key does not open them: their messages wait."""
    found, name = await text_keys.standing(conn), said("sealed texts")
    checks = []
    if found.locked:
        remedy = said(
            "Start with the secret key that they were sealed with, or restore these rows of text_keys from a backup."
            " If the keys are lost for good, close the organization and open it again: it gets a new key, and what was"
            " sealed before reads as erased."
        )
        detail = said("keys that cannot be opened: %(names)s; their messages wait", names=_named(found.locked))
        checks.append(Check(name, "failed", detail, remedy))
    if found.missing:
        remedy = said(
            "Restore these rows of text_keys from a backup. If they are lost for good, `heliograph org configure ORG"
            " --seal-texts` makes a new key, and what was sealed before reads as erased."
        )
        detail = said("missing keys: %(names)s; their messages wait", names=_named(found.missing))
        checks.append(Check(name, "failed", detail, remedy))
    if found.keys and not checks:
        checks.append(Check(name, "ok", said("organizations whose keys can be opened: %(count)s", count=found.keys)))
    return checks


def _named(names: list[str]) -> str:
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" (+{rest})" if rest > 0 else "")


async def _inbox(conn: Connection) -> Check:
    late, unassigned = await inbound.standing(conn)
    if late > LATE:
        detail = said("inbound messages are %(seconds)s s overdue", seconds=round(late))
        return Check(said("inbox"), "failed", detail, said("Start a worker."))
    if unassigned:
        detail = said(
            "inbound messages to numbers that belong to no organization, or to several: %(count)s", count=unassigned
        )
        return Check(said("inbox"), "warning", detail, said("See `heliograph inbound list --unassigned`."))
    return Check(said("inbox"), "ok", said("every inbound message has been assigned to an organization"))
