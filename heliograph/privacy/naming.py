"""A person's names, in the forms in which tables store them."""

from __future__ import annotations

from uuid import UUID

from heliograph.base import phones
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7_floor
from heliograph.consent import people


async def names(conn: Connection, actor: Actor, address: str) -> list[str]:
    """Every spelling of every number, and every user id, of the person behind `address` (E.164, or a user id)."""
    known = await people.names(conn, actor.organization_id, address)
    return [one for name in known for one in _spellings(name)]


_FIRST, _LAST = UUID(int=0), UUID(int=2**128 - 1)


async def periods(conn: Connection, actor: Actor, address: str) -> tuple[list[str], list[UUID], list[UUID]]:
    """The same, with the numbers that they left and that others have taken, as values of `stored_under`: a message
    belongs to the person who had its number at the time."""
    rows = [
        (spelling, uuid7_floor(one.since) if one.since else _FIRST, uuid7_floor(one.until) if one.until else _LAST)
        for one in await people.owned(conn, actor.organization_id, address)
        for spelling in _spellings(one.name)
    ]
    return [name for name, _, _ in rows], [since for _, since, _ in rows], [until for _, _, until in rows]


def stored_under(column: str, first: int) -> str:
    """An SQL condition: a message, whose id contains its time, has one of the names in `column`. `first`: the number of
    the first of the three parameters from `periods`."""
    values = f"${first}::text[], ${first + 1}::uuid[], ${first + 2}::uuid[]"
    return f"""EXISTS (SELECT FROM unnest({values}) AS known (name, since, until)
             WHERE known.name = {column} AND id >= known.since AND id < known.until)"""


def _spellings(name: str) -> list[str]:
    return phones.spellings(name) if name.startswith("+") else [name]


def typed_in(column: str, names: str = "$2") -> str:
    """An SQL condition: a typed text contains the last digits of one of the numbers among `names`, with anything in
    between.

    Eight digits; fewer, but at least six, for numbers so short that they may be written with fewer at home: calling
    codes have up to three digits.
    """
    digits = "right(known.name, greatest(6, least(8, length(known.name) - 4)))"
    return f"""EXISTS (SELECT FROM unnest({names}::text[]) AS known (name)
             WHERE known.name LIKE '+%'
               AND strpos(regexp_replace({column}, '[^0-9]', '', 'g'), {digits}) > 0)"""


def quoted_in(column: str, names: str = "$2") -> str:
    """An SQL condition: JSON contains one of `names` as a whole string."""
    return f"""EXISTS (SELECT FROM unnest({names}::text[]) AS known (name)
             WHERE strpos({column}, '"' || known.name || '"') > 0)"""


def drafted(column: str, names: str = "$2") -> str:
    """An SQL condition: a recipient listed in a campaign's draft is one of the numbers among `names`. What was not read
    as a number is stored as its digits: all national numbers, if the organization has no country."""
    return f"""CASE WHEN {column} LIKE '+%' THEN {column} = ANY ({names}::text[])
                 ELSE '+' || {column} = ANY ({names}::text[]) OR {typed_in(column, names)} END"""


def numbers(names: str = "$2") -> str:
    """An SQL array of the numbers among `names`, without a plus."""
    return f"""ARRAY(SELECT substr(one, 2)::bigint FROM unnest({names}::text[]) AS item (one)
                        WHERE one ~ '^[+][0-9]+$')"""
