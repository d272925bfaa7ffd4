"""Explains to operators, before a message is sent, to which supplier it would go and why.

The rule nobody may break: explanations come from the same look-up that workers use, over the same tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.accounts import send_defaults
from heliograph.base import phones
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7
from heliograph.base.sentences import Sentence, joined, kept, quoted, said
from heliograph.classes.quiet import QuietHours
from heliograph.guard import holds as guarding
from heliograph.networks import asked, learned, plan
from heliograph.networks.directory import Directory
from heliograph.networks.learned import LOOKUP
from heliograph.prices.book import Book
from heliograph.prices.tariff import Destination, Rate, sender_type
from heliograph.routes import rules, words
from heliograph.routes.lookup import Candidates, Route, Table
from heliograph.senders import loading
from heliograph.senders.book import Book as SenderBook
from heliograph.senders.book import NumberRule
from heliograph.sms.circuits import sharing
from heliograph.sms.circuits.sharing import CircuitState
from heliograph.sms.dispatch import routing, suppliers
from heliograph.sms.dispatch.adapting import Facts
from heliograph.sms.dispatch.routing import Supplier, holds_back
from heliograph.sms.lookups import accounts, asking

KNOWN_BY_LOOKUP, KNOWN_BY_RECEIPT = said("known from a look-up"), said("known from a receipt")


class Obstacle(msgspec.Struct, frozen=True):
    """Why a supplier is currently not used."""

    #: "paused", "draining", "held", "circuit" or "unbound".
    code: str
    since: datetime | None = None
    #: The error that ended its last session.
    error: Sentence = quoted("")

    @property
    def said(self) -> Sentence:
        """A short description."""
        match self.code:
            case "held":
                return said("held by an operator")
            case "circuit" if self.since is not None:
                return words.circuit_open(self.since)
            case "unbound":
                bare = said("no session bound")
                return said("no session bound (%(error)s)", error=self.error) if self.error else bare
        return kept(self.code)


class Explanation(msgspec.Struct, frozen=True):
    """What would happen to a message now."""

    decision: Sentence
    #: What keeps it back, whichever its supplier: a suspended or closed organization, a hold, the guard.
    withheld: list[Sentence]
    #: The number's network (MCC-MNC) and how it is known, or that it is looked up first; None: neither.
    network: Sentence | None
    #: The route's name; None: the suppliers' own settings decide.
    route: str | None
    #: Names in the order in which they would be tried; those of equal priority by their share.
    #: Empty: it waits, or ends.
    suppliers: list[str]
    #: The failure code with which it ends at once, and is refunded, since no supplier may ever be given it; None: it is
    #: sent, or waits for a supplier.
    ends: str | None
    #: Routes that match but lose to that one, in order.
    passed_over: list[str]
    #: Changes made to the message on its way, by supplier: another sender, another form of the number.
    changes: list[Sentence]
    #: When it may leave, if it waits for the end of quiet hours; None: now.
    quiet_until: datetime | None


# One number's entry in the table that workers hold in memory (`networks.directory`), even if they no longer trust it.
KNOWN = """
SELECT network, source, learned_at, learned_at > now() - $2::interval AS counts FROM number_networks WHERE number = $1
 ORDER BY learned_at DESC LIMIT 1
"""


async def _network(conn: Connection, to: str, routes: Sequence[Route]) -> tuple[str | None, bool, Sentence]:
    """A number's network, whether that is certain, and how it is known."""
    learnt = await conn.fetchrow(KNOWN, int(to[1:]), learned.KEPT)
    if learnt is not None and learnt["counts"]:
        return learnt["network"], True, KNOWN_BY_LOOKUP if learnt["source"] == LOOKUP else KNOWN_BY_RECEIPT
    place = Directory().place(to)
    if place.is_exact:
        return place.network, True, said("known from its range: numbers there cannot be ported")
    how = said("by its range") if place.network else quoted("")
    if learnt is not None:
        day = f"{learnt['learned_at']:%Y-%m-%d}"
        how = joined([how, said("stale: %(network)s on %(day)s, too long ago", network=learnt["network"], day=day)])
    if place.country in asking.countries(routes):
        asker = accounts.serving(await accounts.load(conn), place.country)
        last = (await asked.states(conn, [int(to[1:])])).get(int(to[1:]))
        if asker is not None and (last is None or last.is_due or last.state == "asked"):
            price = f"{asker.settings.price} {asker.settings.currency}"
            how = joined([how, said("looked up first by %(name)s for %(price)s", name=asker.name, price=price)])
        elif last is not None:
            how = joined([how, said("not found") if last.state == "unknown" else said("its look-up failed")])
    return place.network or None, False, how


async def explain(
    conn: Connection,
    to: str,
    *,
    organization_id: UUID,
    organization: str,
    sender: str,
    traffic_class: str,
    network: str | None = None,
) -> Explanation:
    """Explain what would happen to a message to `to` (E.164). `network`: MCC-MNC, taken as certain; None: as known to
    workers."""
    active = await rules.active(conn)
    is_certain, how = network is not None, said("as given")
    if network is None:
        network, is_certain, how = await _network(conn, to, active)
    known, book = await routing.load(conn), await loading.load(conn)
    table = Table(routing.serving(known), active)
    shares = {one.route.id: one.shares for one in await rules.load(conn)}
    found = table.candidates(
        to,
        organization_id=organization_id,
        sender=sender,
        traffic_class=traffic_class,
        network=network,
        is_certain=is_certain,
    )
    owners = book.owners(sender)
    if owners:
        found = table.owned(found, to, owners)
    fitting = table.fitting(
        to,
        organization_id=organization_id,
        sender=sender,
        traffic_class=traffic_class,
        network=network,
        is_certain=is_certain,
    )
    held, avoided = await suppliers.sessions(conn), await sharing.avoided(conn)
    # As for a message accepted now, including holds of its organization's messages only.
    skipped: dict[UUID, str] = {one.id: words.HELD for one in known if holds_back(one, organization_id, uuid7())}
    skipped |= {id: why.said for id, why in _obstacles(known, held, avoided).items()}
    spoken = {
        id: book.spoken(id, to, organization_id=organization_id, sender=sender, network=network or "")
        for id in found.suppliers
    }
    barred = [id for id, one in spoken.items() if one is None]
    skipped |= {id: _refusing(book, id, to, organization_id, sender, network) for id in barred}
    # As in rate cards: each of the countries that share +1 or +7 has prices of its own.
    there = Destination(to[1:], plan.country(to), network or "", is_certain)
    told = {id: one or sender for id, one in spoken.items()}
    unrated = await _unrated(conn, found, there, traffic_class, told)
    skipped |= dict.fromkeys(unrated, said("it has no rate there"))
    end = routing.ending(found.suppliers, barred=barred, unrated=unrated) if routing.serving(known) else None
    names = {one.id: one.name for one in known}
    seen = shares.get(found.route.id, {}) if found.route else {}
    if found.route and found.route.shared_for:
        seen = rules.of_network(seen, found.route.shared_for)
    facts = await _facts(conn, found)
    facts |= {id: joined([facts.get(id, ""), one.reason]) for id, one in seen.items()}
    slow = {id: one.throttled_at for id, one in avoided.items() if one.throttled_at is not None}
    facts |= {
        id: joined([facts.get(id, ""), said("throttled at %(time)s UTC", time=f"{at:%H:%M}")])
        for id, at in slow.items()
    }
    decision = words.explained(found, names=names, organization=lambda _: organization, skipped=skipped, facts=facts)
    asked = [
        choice.supplier_id
        for group in found.groups
        for choice in sorted(group.choices, key=lambda one: -one.weight)
        if choice.supplier_id not in skipped
    ]
    return Explanation(
        decision,
        await _withheld(conn, organization_id, to, traffic_class),
        (Sentence.of("%(network)s (%(how)s)", {"network": network, "how": how}) if network else how) or None,
        found.route.name if found.route else None,
        [names[id] for id in asked],
        None if end is None else end[1],
        [route.name for _, route in fitting if found.route is None or route.id != found.route.id],
        [
            change
            for id in asked
            for change in _changes(names[id], sender, spoken[id] or sender, to, book.address(id, to))
        ],
        await _opens(conn, organization_id, to, traffic_class),
    )


def _changes(supplier: str, sender: str, spoken: str, to: str, address: NumberRule | None) -> list[Sentence]:
    found = []
    if spoken != sender:
        found.append(said("%(supplier)s sends it as %(sender)s", supplier=supplier, sender=spoken))
    if address is not None and (written := address.written(to[1:])) != to[1:]:
        found.append(said("%(supplier)s gets %(number)s", supplier=supplier, number=written))
    if address is not None and address.numbering is not None:
        ton, npi = address.numbering
        found.append(said("%(supplier)s gets TON %(ton)s, NPI %(npi)s", supplier=supplier, ton=ton, npi=npi))
    return found


def _refusing(
    book: SenderBook, supplier_id: UUID, to: str, organization_id: UUID, sender: str, network: str | None
) -> Sentence:
    state = book.registration(supplier_id, phones.country(to), organization_id, sender, network or "")
    return said(
        "its rules refuse the sender there (registration: %(state)s)",
        state=kept(state) if state else said("nobody asked"),
    )


async def _unrated(
    conn: Connection, found: Candidates, to: Destination, traffic_class: str, told: Mapping[UUID, str]
) -> list[UUID]:
    """Suppliers without a price for the number, on a route that requires one. `told`: the sender that each is given."""
    if found.route is None or not found.route.rated:
        return []
    book, at = Book(), clock.now()
    await book.refresh(conn)

    def rate(id: UUID) -> Rate | None:
        return book.rate(id, to, at, message_class=traffic_class, sender_type=sender_type(told[id]))

    return [id for id in found.suppliers if rate(id) is None]


# A hold on messages accepted before some time does not affect one that is accepted now.
STOPPED = """
SELECT o.state, coalesce(held.by_operator, false) AS held, coalesce(held.restored, false) AS restored
  FROM organizations o CROSS JOIN LATERAL (
       SELECT bool_or(NOT h.restored) AS by_operator, bool_or(h.restored) AS restored FROM queue_holds h
        WHERE h.kind = 'sms' AND h.line IS NULL AND h.before_id IS NULL
          AND (h.organization_id IS NULL OR h.organization_id = o.id)) held
 WHERE o.id = $1
"""


async def _withheld(conn: Connection, organization_id: UUID, to: str, traffic_class: str) -> list[Sentence]:
    row = await conn.fetchrow(STOPPED, organization_id)
    found = []
    if row is not None and row["state"] == "suspended":
        found.append(said("the organization is suspended"))
    if row is not None and row["state"] == "closed":
        found.append(said("the organization is closed"))
    if row is not None and row["held"]:
        found.append(said("an operator holds SMS"))
    if row is not None and row["restored"]:
        found.append(said("SMS have been held since a backup was restored"))
    for policy, until in await guarding.of_number(conn, organization_id, to, traffic_class):
        time = f"{until:%Y-%m-%d %H:%M}"
        if policy == "hold":
            found.append(said("the guard holds messages to numbers like this one until %(time)s UTC", time=time))
        elif policy == "ask":
            found.append(
                said(
                    "the guard refuses messages to numbers like this one until %(time)s UTC, unless the sender has made"
                    " sure that a person asked for them",
                    time=time,
                )
            )
        elif policy != "monitor":
            found.append(said("the guard refuses messages to numbers like this one until %(time)s UTC", time=time))
    return found


async def _opens(conn: Connection, organization_id: UUID, to: str, traffic_class: str) -> datetime | None:
    """When a message of this class may leave, by the organization's quiet hours; None: now."""
    if not await routing.waits_for_day(conn, traffic_class):
        return None
    chosen = await send_defaults.get(conn, organization_id=organization_id)
    return QuietHours().until(chosen.quiet_hours, to, clock.now())


async def _facts(conn: Connection, found: Candidates) -> dict[UUID, Sentence]:
    """Price and quality of the candidates, as workers record them with their decisions."""
    book = Book()
    await book.refresh(conn)
    facts = Facts(book)
    await facts.refresh(conn, suppliers=found.suppliers)
    return dict(facts.of(found))


def place(route: Route) -> tuple[int, str, int, int, str]:
    """The sort key of a route in a list: the most specific destinations first."""
    level = 0 if route.network else 1 if route.prefix else 2 if route.country else 3
    where = route.network or route.prefix or route.country or ""
    return (level, where, route.priority, -route.conditions, route.name)


async def find_obstacles(conn: Connection, known: Sequence[Supplier]) -> dict[UUID, Obstacle]:
    """The suppliers among these that are currently not used, and why."""
    return _obstacles(known, await suppliers.sessions(conn), await sharing.avoided(conn))


def _obstacles(
    known: Sequence[Supplier], held: Mapping[UUID, tuple[int, int, Sentence]], avoided: Mapping[UUID, CircuitState]
) -> dict[UUID, Obstacle]:
    found = {one.id: _obstacle(one, held.get(one.id, suppliers.UNHELD), avoided.get(one.id)) for one in known}
    return {id: why for id, why in found.items() if why is not None}


def _obstacle(one: Supplier, sessions: tuple[int, int, Sentence], avoided: CircuitState | None) -> Obstacle | None:
    if one.state != "active":
        return Obstacle(one.state)
    if one.held:
        return Obstacle("held")
    if avoided is not None and avoided.opened_at is not None:
        return Obstacle("circuit", avoided.opened_at)
    _, bound, error = sessions
    return None if bound else Obstacle("unbound", error=error)
