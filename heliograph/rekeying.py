"""Changing the secret key: everything sealed under another key is resealed under the current one.

The rules nobody may break: a value is replaced only if it is still the one that was opened, so that a secret changed in
the meantime stays as it is; and each batch is a commit, so that a killed run continues where it was. Values that no
configured key opens are counted and left alone.

Signed data (cursors, cookies, forms) is not stored, and is verified with both keys for as long as both are set.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import msgspec

from heliograph.accounts import idempotency
from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.crypto import Key, Unsealable, seal, unseal
from heliograph.base.database.pool import Connection, despite_deadlocks
from heliograph.base.process.settings import Settings
from heliograph.mail import outbox
from heliograph.people import factors
from heliograph.sealing import text_keys
from heliograph.sms.callbacks import intake as sms_intake
from heliograph.sms.dispatch import suppliers
from heliograph.sms.lookups import accounts as lookups
from heliograph.sms.management import drafts
from heliograph.suppliers import kinds
from heliograph.webhooks import endpoints
from heliograph.whatsapp.callbacks import dead_letters
from heliograph.whatsapp.callbacks import intake as whatsapp_intake
from heliograph.whatsapp.mirror import apps

#: Values replaced per transaction: 20 ms of work.
BATCH = 500


class Place(msgspec.Struct, frozen=True):
    """A column of sealed values, for the statements below. `context`: derives the context from a row's ids."""

    table: str
    column: str
    key: Callable[[Settings], Key]
    context: Callable[[Sequence[UUID]], str]
    ids: tuple[str, ...] = ("id",)
    #: The column as bytea[]: all of its values.
    values: str = "ARRAY[{column}]"
    #: What the column becomes, from bytea[].
    written: str = "($1::bytea[])[1]"
    #: An SQL condition: the row has a value.
    has: str = "length({column}) > 0"

    @property
    def name(self) -> str:
        """Its name, for people."""
        return f"{self.table}.{self.column}"

    def sql(self, text: str) -> str:
        """A statement for this place."""
        ids = ", ".join(self.ids)
        after = ", ".join(f"${number}" for number in range(3, 3 + len(self.ids)))
        known = " AND ".join(f"{name} = ${number}" for number, name in enumerate(self.ids, start=3))
        values = self.values.format(column=self.column)
        return text.format(
            table=self.table,
            column=self.column,
            ids=ids,
            after=after,
            known=known,
            values=values,
            written=self.written,
            has=self.has.format(column=self.column),
        )


class Rekeyed(msgspec.Struct, frozen=True):
    """The result for a place."""

    place: str
    #: Values that were resealed, or would be.
    rekeyed: int
    #: Values that no configured key opens.
    unknown: int


#: Every column that holds sealed values. A test compares it with the comments of the schema.
PLACES = (
    Place("suppliers", "secret", suppliers.seal_key, lambda ids: suppliers.context(ids[0])),
    Place(
        "suppliers",
        "old_secrets",
        suppliers.seal_key,
        lambda ids: suppliers.context(ids[0]),
        values="{column}",
        written="$1",
        has="cardinality({column}) > 0",
    ),
    Place("supplier_drafts", "secret", suppliers.seal_key, lambda ids: drafts.context(ids[0])),
    Place("lookup_suppliers", "secret", suppliers.seal_key, lambda ids: lookups.context(ids[0])),
    Place("whatsapp_apps", "secret", apps.seal_key, lambda ids: f"whatsapp_apps/{ids[0]}/secret"),
    Place("whatsapp_apps", "old_secret", apps.seal_key, lambda ids: f"whatsapp_apps/{ids[0]}/secret"),
    Place("whatsapp_apps", "verify_token", apps.seal_key, lambda ids: f"whatsapp_apps/{ids[0]}/verify_token"),
    Place(
        "whatsapp_accounts",
        "token",
        apps.seal_key,
        lambda ids: f"whatsapp_accounts/{ids[1]}/token",
        ("organization_id", "id"),
    ),
    Place(
        "webhook_endpoints",
        "secret",
        endpoints.seal_key,
        lambda ids: endpoints.context(*ids),
        ("organization_id", "id"),
    ),
    Place(
        "webhook_endpoints",
        "old_secrets",
        endpoints.seal_key,
        lambda ids: endpoints.context(*ids),
        ("organization_id", "id"),
        values="{column}",
        written="$1",
        has="cardinality({column}) > 0",
    ),
    Place(
        "text_keys",
        "sealed",
        text_keys.seal_key,
        lambda ids: text_keys.context(ids[0]),
        ("organization_id",),
    ),
    Place("users", "totp", factors.seal_key, lambda ids: f"users/{ids[0]}"),
    Place("mails", "sealed", outbox.seal_key, lambda ids: outbox.context(ids[0])),
    Place("supplier_callbacks", "body", suppliers.seal_key, lambda ids: sms_intake.context(ids[0])),
    Place("whatsapp_callbacks", "body", apps.seal_key, lambda ids: whatsapp_intake.context(ids[0])),
    Place("whatsapp_dead_letters", "body", apps.seal_key, lambda ids: dead_letters.context(ids[0])),
    # Responses with a secret are stored there as base64, others as JSON.
    Place(
        "idempotency",
        "body",
        idempotency.seal_key,
        lambda ids: idempotency.context(ids[1]),
        ("organization_id", "key_hash"),
        values="ARRAY[CASE WHEN left(body, 1) ~ '[A-Za-z]' THEN decode(body, 'base64') END]",
        written="translate(encode(($1::bytea[])[1], 'base64'), E'\\n', '')",
        has="left({column}, 1) ~ '[A-Za-z]'",
    ),
)

# $1 is the current key's id, $2 the maximum number of rows, followed by the ids of the last row examined.
FOREIGN = """
SELECT {ids}, {values} AS found FROM {table}
 WHERE {has} AND ({ids}) > ({after})
   AND EXISTS (SELECT FROM unnest({values}) AS one WHERE substring(one FROM 2 FOR 4) <> $1)
 ORDER BY {ids} LIMIT $2
"""
# $1 contains the new values, $2 the values that must still be there, followed by the ids.
REPLACE = "UPDATE {table} SET {column} = {written} WHERE {known} AND {values} = $2::bytea[]"
_FIRST = UUID(int=0)


async def rekey(
    conn: Connection,
    settings: Settings,
    *,
    check: bool = False,
    batch: int = BATCH,
    say: Callable[[str], None] = lambda line: None,
    by: Principal = SYSTEM,
) -> list[Rekeyed]:
    """Reseal everything under the secret key, one commit per batch; safe to repeat, and while the service is running.
    `check`: only count. `say`: called with progress. The audit log says that it began, with the first values replaced,
    and how it ended: a run that is killed has replaced some."""
    is_begun = False

    async def record(after: dict[str, object]) -> None:
        await audit.record(conn, by, "secrets.rekeyed", object_id="secret_key", after=after)

    async def write(statement: str, values: Sequence[tuple[Any, ...]]) -> None:
        nonlocal is_begun

        async def replaced() -> None:
            async with conn.transaction():
                if not is_begun:
                    await record({"state": "begun"})
                await conn.executemany(statement, values)

        # Workers and people change several of these rows at once, in orders of their own.
        await despite_deadlocks(replaced)
        is_begun = True

    found = [await _in_place(conn, place, place.key(settings), check, batch, say, write) for place in PLACES]
    if is_begun:
        await record({"rekeyed": sum(one.rekeyed for one in found), "unknown": sum(one.unknown for one in found)})
    return found


async def _in_place(
    conn: Connection,
    place: Place,
    key: Key,
    check: bool,
    batch: int,
    say: Callable[[str], None],
    write: Callable[[str, Sequence[tuple[Any, ...]]], Awaitable[None]],
) -> Rekeyed:
    """`write`: called with a batch, for a transaction that replaces its values."""
    rekeyed = unknown = 0
    last = [_FIRST] * len(place.ids)
    foreign, replace = place.sql(FOREIGN), place.sql(REPLACE)
    while rows := await conn.fetch(foreign, key.id, batch, *last):
        resealed: list[tuple[Any, ...]] = []
        for row in rows:
            last = [row[name] for name in place.ids]
            try:
                sealed = [_resealed(key, one, place.context(last)) for one in row["found"]]
            except Unsealable:
                unknown += 1
                continue
            resealed.append((sealed, row["found"], *last))
        if resealed and not check:
            await write(replace, resealed)
        rekeyed += len(resealed)
        say(f"{place.name}: {rekeyed}" + (f", and {unknown} that no key opens" if unknown else ""))
    return Rekeyed(place.name, rekeyed, unknown)


def _resealed(key: Key, sealed: bytes, context: str) -> bytes:
    return seal(key, unseal(key, sealed, context), context)


CALLED = "SELECT name, kind FROM suppliers WHERE state <> 'removed' ORDER BY name"


async def called(conn: Connection) -> list[str]:
    """Names of suppliers whose callback address is derived from the secret key, and thus changes with it."""
    return [row["name"] for row in await conn.fetch(CALLED) if row["kind"] in kinds.HTTP]
