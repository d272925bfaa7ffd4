"""Stored tariffs: import with a preview of the differences, listing, and assignment of price lists to organizations.

The rule nobody may break: an import is all or nothing, under the tariff's lock, and never leaves two rates for the same
destination that hold at the same time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Literal
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base import naming
from heliograph.base.actor import SYSTEM, Actor, Principal
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.base.ids import uuid7
from heliograph.base.sentences import Sentence, said
from heliograph.prices.rows import MOST_ERRORS, TariffInvalid
from heliograph.prices.tariff import Rate

#: Maximum characters of a price list's name.
LONGEST_NAME = 64
#: A price that changes by more than this, in percent, is flagged.
LARGE = 20.0


class Listed(msgspec.Struct, frozen=True):
    """A tariff, without its rates."""

    id: UUID
    name: str
    #: "cost": a supplier's; "price": a list for organizations.
    kind: str
    currency: str
    supplier_id: UUID | None
    is_default: bool
    rates: int
    organizations: int
    changed_at: datetime


class Difference(msgspec.Struct, frozen=True):
    """One rate that an import adds, changes or removes. `percent`: the change of price from what held before it."""

    change: Literal["added", "changed", "removed"]
    rate: Rate
    before: int | None = None
    percent: float | None = None

    @property
    def is_large(self) -> bool:
        """True if the change deserves a second look."""
        if self.percent is not None:
            return abs(self.percent) > LARGE
        # What was free.
        return self.change != "removed" and self.before == 0 and self.rate.price > 0 and not self.rate.rejects


class Imported(msgspec.Struct, frozen=True):
    """What an import did, or would do."""

    added: int
    changed: int
    removed: int
    unchanged: int
    large: int
    differences: Sequence[Difference] = ()


MAKE = """
INSERT INTO tariffs (id, kind, name, supplier_id, currency, created_at, changed_at)
VALUES ($1, $2, $3, $4, $5, now(), now()) ON CONFLICT DO NOTHING
"""
LOCK = """
SELECT id, currency FROM tariffs WHERE kind = $1 AND (supplier_id = $2 OR ($2 IS NULL AND lower(name) = lower($3)))
   FOR UPDATE
"""
RATES = """
SELECT country, mcc, mnc, prefix, message_class, sender_type, price, $2::text AS currency, unit, bill_on,
       effective_from, effective_to, rejects, notes, id
  FROM tariff_rates WHERE tariff_id = $1
 ORDER BY country, mcc, mnc, prefix, message_class, sender_type, effective_from NULLS FIRST, id
"""
INSERT = """
INSERT INTO tariff_rates (tariff_id, id, country, mcc, mnc, prefix, message_class, sender_type, price, unit, bill_on,
                          effective_from, effective_to, rejects, notes)
SELECT $1, item.* FROM unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
                              $9::bigint[], $10::text[], $11::text[], $12::timestamptz[], $13::timestamptz[],
                              $14::boolean[], $15::text[]) AS item
"""
DELETE = "DELETE FROM tariff_rates WHERE tariff_id = $1 AND id = ANY ($2)"
TOUCH = "UPDATE tariffs SET changed_at = clock_timestamp() WHERE id = $1"


async def import_rates(
    conn: Connection,
    given: Sequence[tuple[int, Rate]],
    *,
    kind: Literal["cost", "price"],
    name: str,
    supplier_id: UUID | None = None,
    whole: bool = False,
    dry_run: bool = False,
    by: Principal = SYSTEM,
) -> Imported:
    """Import rates, each with its line, into a supplier's rate card or a price list, which is created if missing.

    A rate for the same destination from the same time replaces the existing one. `whole`: stored rates that are not
    among the given ones are removed. `dry_run`: nothing is stored. Raises TariffInvalid: no rates, several currencies,
    a currency other than the tariff's, the same rate twice, or overlapping rates; and Invalid (name).
    """
    if kind == "price":
        name = naming.checked(name, "name", longest=LONGEST_NAME)
    if not given:
        raise _invalid([(1, said("there are no rates"))])
    async with conn.transaction():
        known = await conn.fetchrow(LOCK, kind, supplier_id, name)
        currency = _currency(given, None if known is None else known["currency"])
        if known is None and not dry_run:
            await conn.execute(MAKE, uuid7(), kind, name, supplier_id, currency)
            known = await conn.fetchrow(LOCK, kind, supplier_id, name)
        if known is not None and known["currency"] != currency:
            raise _invalid(
                [
                    (
                        given[0][0],
                        said(
                            "the currency is %(stored)s; the file has %(given)s",
                            stored=known["currency"],
                            given=currency,
                        ),
                    )
                ]
            )
        old = [] if known is None else [Rate(**row) for row in await conn.fetch(RATES, known["id"], known["currency"])]
        # In a thread, so that a web process answers other requests meanwhile.
        done, new, gone = await asyncio.to_thread(_compare, old, given, whole=whole)
        if known is None or dry_run or not (new or gone):
            return done
        await conn.execute(DELETE, known["id"], [one.id for one in gone])
        await _insert(conn, known["id"], new)
        await conn.execute(TOUCH, known["id"])
        told = {"currency": currency}
        told |= {key: getattr(done, key) for key in ("added", "changed", "removed", "unchanged", "large")}
        await audit.record(conn, by, "tariff.imported", object_id=known["id"], name=name, after=told)
    return done


def _currency(given: Sequence[tuple[int, Rate]], stored: str | None) -> str:
    """The one currency of a file. `stored`: the tariff's; None: it is new. Raises TariffInvalid with the lines that
    differ from it, or from most of the file."""
    counts = Counter(rate.currency for _, rate in given)
    usual = stored if stored is not None and stored in counts else counts.most_common(1)[0][0]
    odd = [(line, rate.currency) for line, rate in given if rate.currency != usual]
    if odd:
        raise _invalid([(line, _differs(its, usual, is_stored=usual == stored)) for line, its in odd])
    return usual


def _differs(its: str, usual: str, *, is_stored: bool) -> Sentence:
    if is_stored:
        return said("a tariff has one currency: this one has %(usual)s, this line has %(its)s", usual=usual, its=its)
    return said(
        "a tariff has one currency: most of the file has %(usual)s, this line has %(its)s", usual=usual, its=its
    )


async def _insert(conn: Connection, tariff_id: UUID, rates: Sequence[Rate]) -> None:
    await conn.execute(
        INSERT,
        tariff_id,
        [uuid7() for _ in rates],
        [one.country for one in rates],
        [one.mcc for one in rates],
        [one.mnc for one in rates],
        [one.prefix for one in rates],
        [one.message_class for one in rates],
        [one.sender_type for one in rates],
        [one.price for one in rates],
        [one.unit for one in rates],
        [one.bill_on for one in rates],
        [one.effective_from for one in rates],
        [one.effective_to for one in rates],
        [one.rejects for one in rates],
        [one.notes for one in rates],
    )


# A rate card has the name of its supplier, which may have been renamed since it was made.
NAMED = """
(SELECT t.id, coalesce(s.name, t.name) AS name, t.kind, t.currency, t.supplier_id, t.is_default, t.changed_at
   FROM tariffs t LEFT JOIN suppliers s ON s.id = t.supplier_id)
"""
LIST = f"""
SELECT t.id, t.name, t.kind, t.currency, t.supplier_id, t.is_default,
       (SELECT count(*) FROM tariff_rates WHERE tariff_id = t.id) AS rates,
       (SELECT count(*) FROM organizations WHERE price_list_id = t.id) AS organizations, t.changed_at
  FROM {NAMED} t WHERE t.kind = $1 ORDER BY lower(t.name), t.id
"""


async def list_tariffs(conn: Connection, kind: Literal["cost", "price"]) -> list[Listed]:
    """All rate cards, or all price lists."""
    return [Listed(**row) for row in await conn.fetch(LIST, kind)]


async def find(
    conn: Connection, kind: Literal["cost", "price"], *, name: str = "", supplier_id: UUID | None = None
) -> Listed:
    """A supplier's rate card, or a price list by name, regardless of case and of how accents are encoded. Raises
    NotFound."""
    wanted = naming.sought(name).lower()
    for one in await list_tariffs(conn, kind):
        if one.supplier_id == supplier_id if supplier_id else one.name.lower() == wanted:
            return one
    raise NotFound("There are no rates of this supplier." if supplier_id else "There is no such price list.", name=name)


async def rates_of(conn: Connection, one: Listed) -> list[Rate]:
    """All rates of a tariff, including past and future ones."""
    return [Rate(**row) for row in await conn.fetch(RATES, one.id, one.currency)]


ASSIGN = "UPDATE organizations SET price_list_id = $2 WHERE id = $1"
BEFORE = """
SELECT tariffs.name FROM organizations LEFT JOIN tariffs ON tariffs.id = price_list_id WHERE organizations.id = $1
   FOR UPDATE OF organizations
"""


async def assign(conn: Connection, actor: Actor, *, price_list: str | None) -> None:
    """Assign a price list to an organization; None: the default one. Raises NotFound."""
    async with conn.transaction():
        found = None if price_list is None else await find(conn, "price", name=price_list)
        before = await conn.fetchval(BEFORE, actor.organization_id)
        await conn.execute(ASSIGN, actor.organization_id, found and found.id)
        told = {"price_list": before}, {"price_list": found and found.name}
        await audit.record(
            conn, actor, "price_list.assigned", object_id=actor.organization_id, before=told[0], after=told[1]
        )


# Another list that is being made the default at this moment is cleared, too: without the lock, it is not seen.
LOCK_LISTS = "SELECT FROM tariffs WHERE kind = 'price' ORDER BY id FOR NO KEY UPDATE"
# Two statements, because a unique index is checked row by row.
CLEAR_DEFAULT = "UPDATE tariffs SET is_default = false WHERE is_default"
MAKE_DEFAULT = "UPDATE tariffs SET is_default = true WHERE id = $1"


async def make_default(conn: Connection, *, price_list: str | None, by: Principal = SYSTEM) -> None:
    """Make a price list the default, for organizations without their own; None: there is no default. Raises
    NotFound."""
    async with conn.transaction():
        found = None if price_list is None else await find(conn, "price", name=price_list)
        await conn.execute(LOCK_LISTS)
        await conn.execute(CLEAR_DEFAULT)
        if found is not None:
            await conn.execute(MAKE_DEFAULT, found.id)
        await audit.record(
            conn, by, "price_list.assigned", object_id="default", after={"price_list": found and found.name}
        )


def _compare(
    old: Sequence[Rate], given: Sequence[tuple[int, Rate]], *, whole: bool
) -> tuple[Imported, list[Rate], list[Rate]]:
    """Returns the changes of an import, the rates to store, and those to delete. Raises TariffInvalid."""
    known = {(one.destination, one.begins): one for one in old}
    lines: dict[tuple[tuple[str, ...], datetime], int] = {}
    new: dict[tuple[tuple[str, ...], datetime], Rate] = {}
    errors: list[tuple[int, Sentence]] = []
    for line, rate in given:
        key = (rate.destination, rate.begins)
        if key in lines:
            errors.append((line, said("line %(line)s is for the same destination from the same time", line=lines[key])))
        lines[key], new[key] = line, rate
    kept = {} if whole else {key: one for key, one in known.items() if key not in new}
    after = kept | new
    errors += _overlaps(after, lines)
    if errors:
        raise _invalid(errors)
    steps = _by_destination(old)
    later = _by_destination(after.values())
    differences = []
    unchanged = 0
    for key, rate in new.items():
        before = known.get(key)
        if before is not None and msgspec.structs.replace(before, id=None) == rate:
            unchanged += 1
            continue
        held = before or _before(rate, steps) or _before(rate, later, strictly=True)
        price = None if held is None or held.rejects else held.price
        percent = None if not price or rate.rejects else round((rate.price - price) / price * 100, 2)
        differences.append(Difference("changed" if before else "added", rate, price, percent))
    gone = [one for key, one in known.items() if key not in after]
    differences += [Difference("removed", one, one.price) for one in gone]
    count = {name: sum(one.change == name for one in differences) for name in ("added", "changed", "removed")}
    large = sum(one.is_large for one in differences)
    stored = [one.rate for one in differences if one.change != "removed"]
    replaced = [known[(one.destination, one.begins)] for one in stored if (one.destination, one.begins) in known]
    return Imported(**count, unchanged=unchanged, large=large, differences=differences), stored, gone + replaced


def _by_destination(rates: Iterable[Rate]) -> dict[tuple[str, ...], list[Rate]]:
    found: dict[tuple[str, ...], list[Rate]] = {}
    for one in rates:
        found.setdefault(one.destination, []).append(one)
    for some in found.values():
        some.sort(key=lambda one: one.begins)
    return found


def _before(rate: Rate, known: dict[tuple[str, ...], list[Rate]], *, strictly: bool = False) -> Rate | None:
    """The rate of the same destination when this one begins, or just before."""
    held = [one for one in known.get(rate.destination, ()) if one.begins < rate.begins or not strictly]
    held = [one for one in held if one.begins <= rate.begins]
    return held[-1] if held else None


def _overlaps(
    rates: dict[tuple[tuple[str, ...], datetime], Rate], lines: dict[tuple[tuple[str, ...], datetime], int]
) -> list[tuple[int, Sentence]]:
    errors = []
    for destination, some in _by_destination(rates.values()).items():
        for one, other in pairwise(some):
            if one.ends > other.begins and other.effective_from is not None:  # which the later one has
                first, second = lines.get((destination, one.begins)), lines.get((destination, other.begins))
                text = said(
                    "overlaps %(where)s: the earlier one %(ends)s, the later one begins at %(begins)s; to end the "
                    "earlier one then, give it effective_to %(begins)s",
                    where=said("line %(line)s", line=first) if first and second else said("a stored rate"),
                    ends=said("has no end")
                    if one.effective_to is None
                    else said("ends at %(time)s", time=iso(one.effective_to)),
                    begins=iso(other.effective_from),
                )
                errors.append((second or first or 1, text))
    return errors


def _invalid(errors: Sequence[tuple[int, Sentence]]) -> TariffInvalid:
    return TariffInvalid(errors=[{"line": line, "message": text} for line, text in sorted(errors)[:MOST_ERRORS]])
