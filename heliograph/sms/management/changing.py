"""Changing a supplier: the differences are shown beforehand, and recorded in the audit log with the change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from heliograph.base import naming
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.crypto import Key, Unsealable
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.sms.dispatch import suppliers
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.management import options
from heliograph.sms.reports import diagnosis
from heliograph.suppliers import kinds
from heliograph.suppliers.http.kind import SECRET

#: Maps a supplier to its changed version, and new secrets by name.
Wanted = Callable[[Supplier], tuple[Supplier, Mapping[str, str]]]


class Changed(msgspec.Struct, frozen=True):
    """A change: setting, before and after for each difference."""

    supplier: Supplier
    differences: list[dict[str, Any]]


def secrets(kind: str) -> dict[str, str]:
    """Names and meanings of the secrets of a kind, the account's own first."""
    return dict(kinds.HTTP[kind].secrets) if kind in kinds.HTTP else {SECRET: "Password of the account"}


async def change(
    conn: Connection,
    key: Key,
    *,
    supplier: str,
    wanted: Wanted,
    seen_at: datetime | None = None,
    by: Principal = SYSTEM,
) -> Changed:
    """Change the supplier with this name or id; workers follow within a second. `seen_at`: when the difference was
    reviewed; None: not checked.

    Raises NotFound, Invalid (names the setting) and SupplierExists.
    """
    async with conn.transaction():
        before = await suppliers.lock(conn, supplier=supplier)
        if seen_at is not None and before.changed_at != seen_at:
            raise Invalid(
                ("name", "moved", "Somebody has changed this supplier in the meantime. Review the difference again.")
            )
        after, given = wanted(before)
        if after.name != before.name:
            name = naming.checked(after.name, "name", longest=suppliers.LONGEST_NAME)
            after = msgspec.structs.replace(after, name=name)
        if given.get(SECRET) == "":  # as from a shell variable that is not set: the account could no longer be used
            raise Invalid((SECRET, "required", "The connection needs its password."))
        known = opened(key, before)
        sealed = options.with_secrets(before.kind, known, dict(given))
        found = options.differences(before, after)
        if sealed != known:
            found += [
                {"setting": "password" if one == SECRET else one, "before": options.HIDDEN, "after": "a new one"}
                for one in given
            ]
        if found:
            secret = None if sealed == known else sealed
            await suppliers.change(conn, key, after, before=before, secret=secret, by=by)
            await diagnosis.reread(conn, before, after)
    return Changed(after, found)


def given_secrets(kind: str, given: Mapping[str, str]) -> dict[str, str]:
    """New secrets as typed, without those to be left unchanged. Raises Invalid (names the secret)."""
    wanted = {name: given[name] for name in secrets(kind) if given.get(name)}
    if not wanted:
        raise Invalid((SECRET, "required", "Type the new one."))
    return wanted


def opened(key: Key, one: Supplier) -> str | None:
    """The password, or None if it was sealed under another secret key."""
    try:
        return suppliers.open_secret(key, one)
    except Unsealable:
        return None
