"""What operators set for the whole installation, without a shell: its name, what it tells everybody, and its rules.

What the machine needs to start (addresses, secrets, limits) are settings of the environment
(`base.process.settings`); these are of the database, and in force in every process within two seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Who
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, Pool, is_down
from heliograph.base.errors import Invalid
from heliograph.base.loading_cache import LoadingCache

#: What it is called where nobody has named it.
PRODUCT = "Heliograph"
#: Characters at most.
LONGEST_NAME, LONGEST_ANNOUNCEMENT, LONGEST_ADDRESS = 40, 300, 300
#: Of a quota.
DIGITS = 9
#: Seconds until every process shows a change.
MAX_AGE = 2.0


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the installation."""

    #: What both apps call themselves.
    name: str = PRODUCT
    #: Stands above every page of both apps; "": nothing does.
    announcement: str = ""
    #: When it goes by itself; None: when it is taken away.
    announcement_until: datetime | None = None
    #: Whether a sender ID is approved once two operators have approved it.
    four_eyes: bool = False
    #: Whether operators are mailed the receipts of each day.
    receipts_mail: bool = False
    #: Message quota that an organization begins with where whoever creates it names none.
    new_quota: int = 0
    #: Pages of whoever runs the installation, linked at the foot of the dashboard; "": none.
    terms_url: str = ""
    privacy_url: str = ""

    def announced(self, at: datetime) -> str:
        """What is announced at a time."""
        return "" if self.announcement_until is not None and self.announcement_until <= at else self.announcement


#: The names that can be set, in the order in which they are shown.
NAMES = Installation.__struct_fields__
LOAD = "SELECT name, value FROM installation_settings"


async def load(conn: Connection | Pool) -> Installation:
    """As they are now."""
    return _of({row["name"]: row["value"] for row in await conn.fetch(LOAD)})


# Whoever changes them waits for who does so already; readers do not.
LOCK = "LOCK TABLE installation_settings IN SHARE ROW EXCLUSIVE MODE"
CLEAR = "DELETE FROM installation_settings WHERE name = ANY ($1)"
PUT = """
INSERT INTO installation_settings (name, value, set_at)
SELECT name, value, $3 FROM unnest($1::text[], $2::text[]) AS item (name, value)
ON CONFLICT (name) DO UPDATE SET value = excluded.value, set_at = excluded.set_at
"""


async def change(conn: Connection, who: Who, given: Mapping[str, str]) -> Installation:
    """Set what is given, by its name; "" restores what is in force where nothing is set. All of it or, with an Invalid
    that names every wrong one, nothing."""
    checked = _checked(given)
    async with conn.transaction():
        await conn.execute(LOCK)
        before = await load(conn)
        await conn.execute(CLEAR, [name for name, value in checked.items() if not value])
        put = {name: value for name, value in checked.items() if value}
        await conn.execute(PUT, list(put), list(put.values()), clock.now())
        after = await load(conn)
        if after != before:
            await audit.record(
                conn, who, "installation.changed", object_id="installation", name=after.name, before=before, after=after
            )
    return after


class Current:
    """The settings, as a process shows them: at most MAX_AGE old, and while the database is away as they were."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._fresh: LoadingCache[str, Installation] = LoadingCache(self._load, max_age=MAX_AGE, indivisible=is_down)
        self.last = Installation()

    async def get(self) -> Installation:
        """Never fails: the page of an error shows them too."""
        try:
            self.last = await self._fresh.get("") or self.last
        except Exception as error:
            if not is_down(error):
                raise
        return self.last

    def forget(self) -> None:
        """Show a change of this process at once."""
        self._fresh.forget("")

    async def _load(self, keys: object) -> dict[str, Installation]:
        return {"": await load(self._pool)}


def _of(rows: Mapping[str, str]) -> Installation:
    known = {name: value for name, value in rows.items() if name in NAMES}
    until = known.pop("announcement_until", None)
    eyes, mail = known.pop("four_eyes", ""), known.pop("receipts_mail", "")
    amount = known.pop("new_quota", "0")
    return Installation(
        **known,  # what is left are texts
        announcement_until=datetime.fromisoformat(until) if until else None,
        four_eyes=eyes == "true",
        receipts_mail=mail == "true",
        new_quota=int(amount),
    )


def _checked(given: Mapping[str, str]) -> dict[str, str]:
    """What is stored of each. Raises Invalid."""
    values = {name: " ".join(value.split()) for name, value in given.items()}
    wrong: list[tuple[str, str, str]] = [
        (name, "unknown", f"`{name}` is none of {', '.join(NAMES)}") for name in values if name not in NAMES
    ]
    for name, longest in (("name", LONGEST_NAME), ("announcement", LONGEST_ANNOUNCEMENT)):
        if len(values.get(name, "")) > longest or "\0" in values.get(name, ""):
            wrong.append((name, "length", f"`{name}` must have at most {longest} characters"))
    for name in ("terms_url", "privacy_url"):
        if (value := values.get(name, "")) and not _is_address(value):
            said = f"`{name}` must be an http:// or https:// address of at most {LONGEST_ADDRESS} characters"
            wrong.append((name, "format", said))
    if (until := values.get("announcement_until")) and (at := _moment(until)) is None:
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


def _moment(value: str) -> datetime | None:
    """A time that says of which zone it is."""
    try:
        at = datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


__all__ = ["NAMES", "PRODUCT", "Current", "Installation", "change", "load"]
