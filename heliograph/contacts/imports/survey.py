"""What a file would do: the countries of its numbers, which contacts are new, and which rows are rejected and why.

It covers the whole file, and writes nothing. The rule nobody may break: memory does not grow by more than a few bytes
per number.
"""

from __future__ import annotations

import asyncio
import secrets
from array import array
from collections.abc import Sequence
from uuid import UUID

import msgspec

from heliograph.base import phones
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.contacts import importing
from heliograph.contacts.importing import Batch
from heliograph.contacts.records import Entry

#: Rows shown per reason, and characters of a cell.
EXAMPLES, LONGEST_CELL = 15, 80
_WORD = (1 << 64) - 1


class Rejected(msgspec.Struct):
    """Rows that are rejected for one reason."""

    count: int = 0
    #: (row number as in a spreadsheet, cells) of the first ones.
    examples: list[tuple[int, list[str]]] = []


class Survey(msgspec.Struct):
    """The result of checking a file: `rows` is the sum of the five counts below it."""

    rows: int = 0
    created: int = 0
    updated: int = 0
    unchanged: int = 0
    #: Numbers that occurred earlier in the file.
    doubled: int = 0
    rejected: int = 0
    #: Opted-out numbers and countries, among rows that are not rejected.
    opted_out: int = 0
    countries: dict[str, int] = {}
    #: Numbers in no range that is in use: often another country's national numbers, or numbers that lack a digit.
    unused: int = 0
    #: (row number as in a spreadsheet, its cell, the number that it was read as) of the first of them.
    unused_examples: list[tuple[int, str, str]] = []
    reasons: dict[str, Rejected] = {}

    @property
    def strangers(self) -> list[str]:
        """Countries other than the largest that have over 1 % of the numbers: often a sign that it was misread."""
        total = sum(self.countries.values())
        return [country for country, count in self.by_country()[1:] if count > total / 100]

    @property
    def is_doubtful(self) -> bool:
        """Whether over 1 % of the numbers are in no range that is in use. A few may be: known ranges lag behind."""
        return self.unused > sum(self.countries.values()) / 100

    @property
    def doubts(self) -> list[str]:
        """What has to be confirmed before the import: "strangers", "unused"."""
        doubts = {"strangers": bool(self.strangers), "unused": self.is_doubtful}
        return [name for name, is_so in doubts.items() if is_so]

    def by_country(self) -> list[tuple[str, int]]:
        """Most numbers first."""
        return sorted(self.countries.items(), key=lambda one: (-one[1], one[0]))

    def by_reason(self) -> list[tuple[str, Rejected]]:
        """Rejected rows by reason, most fundamental first: people who correct one kind at a time need not handle errors
        that follow from another."""
        order = {text: place for place, text in enumerate(importing.REASONS)}
        return sorted(self.reasons.items(), key=lambda one: (order.get(one[0], -1), one[0]))


class Numbers:
    """A set of phone numbers, at some 16 bytes each: an open-addressing hash table of the digits.

    The factors of the hash function are secret: otherwise a file could consist of numbers that all collide, each of
    which would be compared with all those before it. There are two, because with a single one, one factor in a hundred
    clusters consecutive numbers."""

    def __init__(self) -> None:
        self._first, self._second = secrets.randbits(64) | 1, secrets.randbits(64) | 1
        self._bits = 12
        self._table = array("Q", bytes(8 << self._bits))
        self._count = 0

    def add(self, number: str) -> bool:
        """Add a number; True if it is new. `number`: E.164."""
        if 3 * self._count >= 2 << self._bits:
            self._grow()
        return self._put(int(number[1:]))

    def _put(self, value: int) -> bool:
        table, mask = self._table, (1 << self._bits) - 1
        mixed = value * self._first & _WORD
        place = ((mixed ^ mixed >> 32) * self._second & _WORD) >> (64 - self._bits)
        while found := table[place]:
            if found == value:
                return False
            place = (place + 1) & mask
        table[place] = value
        self._count += 1
        return True

    def _grow(self) -> None:
        known = self._table
        self._bits += 1
        self._table, self._count = array("Q", bytes(8 << self._bits)), 0
        for value in known:
            if value:
                self._put(value)


# Must match the condition in `records.WRITE`, which decides which contacts are changed.
JUDGE = """
SELECT count(*) FILTER (WHERE c.phone IS NULL)::int AS created,
       count(*) FILTER (WHERE $7 AND c.phone IS NOT NULL AND (
           NOT given.tags <@ c.tags
           OR given.name <> given.phone
              AND (given.name, given.first_name, given.last_name) IS DISTINCT FROM (c.name, c.first_name, c.last_name))
           )::int AS updated,
       count(*) FILTER (WHERE (SELECT since FROM opted_out_since($1, given.phone)) IS NOT NULL)::int AS opted_out
  FROM (SELECT g.phone, coalesce(g.name, g.phone) AS name, g.first_name, g.last_name,
               string_to_array(g.tags, E'\\x1f') AS tags
          FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
            AS g (phone, name, first_name, last_name, tags)) given
  LEFT JOIN LATERAL (
       SELECT phone, name, first_name, last_name, tags FROM contacts
        WHERE organization_id = $1 AND phone = given.phone AND mode = $8 LIMIT 1) c ON true
"""


async def judge_batch(
    conn: Connection,
    actor: Actor,
    *,
    batch: Batch,
    column: int,
    survey: Survey,
    numbers: Numbers,
    updates: bool,
    is_people: bool,
) -> None:
    """Add what a batch would do to the survey. `column`: that of the phone numbers. `updates`: existing contacts are
    changed. `is_people`: contacts are imported, not numbers that must not be messaged."""
    # Not in the event loop: judging a number with a zero after its calling code takes 40 µs.
    fresh = await asyncio.to_thread(_count_new, batch, column, survey, numbers)
    counts = (0, 0, 0)
    if fresh:
        row = await conn.fetchrow(
            JUDGE,
            actor.organization_id,
            [one.phone for one in fresh],
            [one.name for one in fresh],
            [one.first_name for one in fresh],
            [one.last_name for one in fresh],
            ["\x1f".join(one.tags) for one in fresh],
            updates,
            actor.mode,
        )
        assert row is not None
        counts = tuple(row.values())
    created, updated, opted_out = counts
    if not is_people:
        created, updated = len(fresh) - opted_out, 0
    survey.rows += batch.rows
    survey.created += created
    survey.updated += updated
    survey.opted_out += opted_out
    survey.unchanged += len(fresh) - created - updated
    survey.rejected += len(batch.rejected)
    survey.doubled += batch.rows - len(fresh) - len(batch.rejected)
    _reject(survey, batch.rejected)


def _count_new(batch: Batch, column: int, survey: Survey, numbers: Numbers) -> list[Entry]:
    """Count the numbers of a batch that were not in earlier ones, by country; returns their entries."""
    fresh = []
    for phone, (entry, line) in batch.entries.items():
        if numbers.add(phone):
            fresh.append(entry)
            country = phones.country(phone)
            survey.countries[country] = survey.countries.get(country, 0) + 1
            if not phones.is_valid(phone):
                survey.unused += 1
                if len(survey.unused_examples) < EXAMPLES:
                    survey.unused_examples.append((line.number, line.cells[column][:LONGEST_CELL], phone))
    return fresh


def _reject(survey: Survey, rejected: Sequence[tuple[importing.Row, str]]) -> None:
    for row, reason in rejected:
        kind = survey.reasons.setdefault(reason, Rejected(examples=[]))
        kind.count += 1
        if len(kind.examples) < EXAMPLES:
            kind.examples.append((row.number, [cell[:LONGEST_CELL] for cell in row.cells[:12]]))


FORGET_EXAMPLES = "UPDATE contact_imports SET survey = $3 WHERE organization_id = $1 AND id = $2"


async def forget_examples(conn: Connection, actor: Actor, *, id: UUID, found: Survey | None) -> None:
    """Keep only the counts of an import's survey, once nobody has to decide by it anymore: its examples are rows of
    people, and the import stays listed after its file, its rejected rows and the people themselves are erased."""
    if found is None:
        return
    reasons = {reason: Rejected(count=one.count, examples=[]) for reason, one in found.reasons.items()}
    counts = msgspec.structs.replace(found, unused_examples=[], reasons=reasons)
    await conn.execute(FORGET_EXAMPLES, actor.organization_id, id, msgspec.json.encode(counts).decode())
