"""A person's names, in the forms in which tables store them."""

from __future__ import annotations

from heliograph.base import phones
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.consent import people


async def names(conn: Connection, actor: Actor, address: str) -> list[str]:
    """Every spelling of every number, and every user id, of the person behind `address` (E.164, or a user id)."""
    known = await people.names(conn, actor.organization_id, address)
    return [one for name in known for one in (phones.spellings(name) if name.startswith("+") else [name])]


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
