"""Settings of the whole installation that operators change without a shell: its name, its announcement, and its rules.

What a process needs to start (addresses, secrets, limits) is set in the environment (`base.process.settings`); these
settings are in the database, and take effect in every process within two seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, Pool, is_down
from heliograph.base.errors import Invalid
from heliograph.base.loading_cache import LoadingCache

#: Default name.
PRODUCT = "Heliograph"
#: Maximum length in characters.
LONGEST_NAME, LONGEST_ANNOUNCEMENT, LONGEST_ADDRESS = 40, 300, 300
#: Maximum quota of a new organization.
DIGITS = 9
#: Seconds within which every process shows a change.
MAX_AGE = 2.0


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the installation."""

    #: The name shown in both apps.
    name: str = PRODUCT
    #: Announcement at the top of every page of both apps; "": none.
    announcement: str = ""
    #: When it disappears by itself; None: it stays until removed.
    announcement_until: datetime | None = None
    #: Whether a sender ID needs the approval of two operators.
    four_eyes: bool = False
    #: Whether operators are mailed a daily report on receipts.
    receipts_mail: bool = False
    #: Initial message quota of an organization whose creator specifies none.
    new_quota: int = 0
    #: Pages of the company that runs the installation, linked in the dashboard's footer; "": none.
    terms_url: str = ""
    privacy_url: str = ""

    def announced(self, at: datetime) -> str:
        """The announcement in effect at a given time."""
        return "" if self.announcement_until is not None and self.announcement_until <= at else self.announcement


#: The names of the settings, in display order.
NAMES = Installation.__struct_fields__
LOAD = "SELECT name, value FROM installation_settings"


async def load(conn: Connection | Pool) -> Installation:
    """The current settings."""
    return _of({row["name"]: row["value"] for row in await conn.fetch(LOAD)})


# Writers wait for each other; readers do not wait.
LOCK = "LOCK TABLE installation_settings IN SHARE ROW EXCLUSIVE MODE"
CLEAR = "DELETE FROM installation_settings WHERE name = ANY ($1)"
PUT = """
INSERT INTO installation_settings (name, value, set_at)
SELECT name, value, $3 FROM unnest($1::text[], $2::text[]) AS item (name, value)
ON CONFLICT (name) DO UPDATE SET value = excluded.value, set_at = excluded.set_at
"""


async def change(conn: Connection, who: Principal, given: Mapping[str, str]) -> Installation:
    """Change the given settings, by name; "" restores a default. All or nothing: Invalid names every setting that is
    wrong."""
    checked = _checked(given)
    async with conn.transaction():
        await conn.execute(LOCK)
        before = await load(conn)
        until = checked.get("announcement_until")
        if until and before.announcement_until != (at := datetime.fromisoformat(until)) and at <= clock.now():
            raise Invalid(("announcement_until", "past", "`announcement_until` must be in the future"))
        await conn.execute(CLEAR, [name for name, value in checked.items() if not value])
        put = {name: value for name, value in checked.items() if value}
        await conn.execute(PUT, list(put), list(put.values()), clock.now())
        after = await load(conn)
        if after != before:
            await audit.record(
                conn, who, "installation.changed", object_id="installation", name=after.name, before=before, after=after
            )
    return after


class SettingsCache:
    """A process's cache of the settings: at most MAX_AGE old, or the last known ones while the database is
    unavailable."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._fresh: LoadingCache[str, Installation] = LoadingCache(self._load, max_age=MAX_AGE, indivisible=is_down)
        self.last = Installation()

    async def get(self) -> Installation:
        """The current settings. Never fails, since error pages show them too."""
        try:
            self.last = await self._fresh.get("") or self.last
        except Exception as error:
            if not is_down(error):
                raise
        return self.last

    def forget(self) -> None:
        """Discard the cache, so that a change made in this process shows at once."""
        self._fresh.forget("")

    async def _load(self, keys: object) -> dict[str, Installation]:
        return {"": await load(self._pool)}


def _of(rows: Mapping[str, str]) -> Installation:
    known = {name: value for name, value in rows.items() if name in NAMES}
    until = known.pop("announcement_until", None)
    eyes, mail = known.pop("four_eyes", ""), known.pop("receipts_mail", "")
    amount = known.pop("new_quota", "0")
    return Installation(
        **known,  # the remaining ones are texts
        announcement_until=datetime.fromisoformat(until) if until else None,
        four_eyes=eyes == "true",
        receipts_mail=mail == "true",
        new_quota=int(amount),
    )


def _checked(given: Mapping[str, str]) -> dict[str, str]:
    """The value to store for each. Raises Invalid."""
    values = {name: " ".join(value.split()) for name, value in given.items()}
    wrong: list[tuple[str, str, str]] = [
        (name, "unknown", f"`{name}` is not one of {', '.join(NAMES)}") for name in values if name not in NAMES
    ]
    for name, longest in (("name", LONGEST_NAME), ("announcement", LONGEST_ANNOUNCEMENT)):
        if len(values.get(name, "")) > longest or "\0" in values.get(name, ""):
            wrong.append((name, "length", f"`{name}` must have at most {longest} characters"))
    for name in ("terms_url", "privacy_url"):
        if (value := values.get(name, "")) and not _is_address(value):
            said = f"`{name}` must be an http:// or https:// address of at most {LONGEST_ADDRESS} characters"
            wrong.append((name, "format", said))
    if (until := values.get("announcement_until")) and (at := clock.time_in(until)) is None:
        wrong.append(("announcement_until", "format", "`announcement_until` must be a time such as 2027-01-31T18:00Z"))
    elif until:
        assert at is not None
        values["announcement_until"] = at.isoformat()
    for name in ("four_eyes", "receipts_mail"):
        if values.get(name, "") not in ("", "true", "false"):
            wrong.append((name, "enum", f"`{name}` must be true or false"))
    if (amount := values.get("new_quota")) and not (amount.isascii() and amount.isdigit() and len(amount) <= DIGITS):
        wrong.append(("new_quota", "range", f"`new_quota` must be a number of messages of at most {DIGITS} digits"))
    if wrong:
        raise Invalid(*wrong)
    return values


def _is_address(value: str) -> bool:
    scheme, _, rest = value.partition("://")
    return scheme in ("http", "https") and len(rest) > 0 and len(value) <= LONGEST_ADDRESS and value.isprintable()


__all__ = ["NAMES", "PRODUCT", "Installation", "SettingsCache", "change", "load"]
