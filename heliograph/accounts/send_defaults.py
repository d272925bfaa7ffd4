"""An organization's defaults for sends, its quiet hours for marketing, which of its campaigns need a second person's
approval, and how long it keeps texts and messages.

The rule nobody may break: a default is looked up when a message is accepted, and is stored in its row from then on; a
later change does not affect messages already accepted.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Problems
from heliograph.classes import quiet

GUARANTEES = ("at_least_once", "at_most_once")
#: Ranges of validity in seconds, and of retention of texts and messages in days: events can be replayed for 30 days,
#: and until then receipts and webhook attempts refer to their message.
VALIDITY, TEXT_DAYS, MESSAGE_DAYS = (60, 259_200), (1, 3_650), (30, 3_650)
#: Maximum of the number of recipients above which a campaign needs approval; 0: all campaigns do.
APPROVAL = (0, 1_000_000)


class SendDefaults(msgspec.Struct, frozen=True):
    """An organization's defaults for its sends."""

    #: What happens after an attempt with an unknown outcome, one of GUARANTEES: it is repeated or not.
    guarantee: str
    #: Default validity in seconds, also of messages of campaigns; None: the horizon of the retry schedule.
    validity_seconds: int | None
    #: Texts are erased after this many days; the installation's setting applies if this is None or longer.
    text_days: int | None
    #: Messages are removed, with their numbers, after this many days; the installation's setting applies if this is
    #: None or longer.
    message_days: int | None
    #: Quiet hours for marketing: "country" (those of the recipient's country), "off", or hours in its local time, such
    #: as "20:00-08:00".
    quiet_hours: str
    #: Campaigns with more recipients than this need a second person's approval; None: none does.
    approval_above: int | None


GET = """
SELECT guarantee, validity_seconds, text_days, message_days, quiet_hours, approval_above
  FROM organizations WHERE id = $1
"""


async def get(conn: Connection, *, organization_id: UUID) -> SendDefaults:
    """An organization's defaults. Raises NotFound."""
    row = await conn.fetchrow(GET, organization_id)
    if row is None:
        raise NotFound(resource="organization", id=str(organization_id))
    return SendDefaults(*row.values())


LOCK = """
SELECT name, guarantee, validity_seconds, text_days, message_days, quiet_hours, approval_above
  FROM organizations WHERE id = $1 FOR NO KEY UPDATE
"""
CHANGE = """
UPDATE organizations
   SET guarantee = $2, validity_seconds = $3, text_days = $4, message_days = $5, quiet_hours = $6, approval_above = $7
 WHERE id = $1
"""


def check_quiet_hours(setting: str) -> None:
    """Raises Invalid for quiet hours that an organization may not choose."""
    if not quiet.is_setting(setting):
        text = "`quiet_hours` must be country, off, or hours such as 20:00-08:00"
        raise Invalid(("quiet_hours", "pattern", text))


async def change(
    conn: Connection,
    *,
    organization_id: UUID,
    guarantee: str | None = None,
    validity_seconds: int | msgspec.UnsetType | None = msgspec.UNSET,
    text_days: int | msgspec.UnsetType | None = msgspec.UNSET,
    message_days: int | msgspec.UnsetType | None = msgspec.UNSET,
    quiet_hours: str | None = None,
    approval_above: int | msgspec.UnsetType | None = msgspec.UNSET,
    by: Principal = SYSTEM,
) -> SendDefaults:
    """Change the given settings; None restores the installation's. Takes effect in every process within a second.
    Raises Invalid, NotFound."""
    wrong = Problems()
    if guarantee is not None and guarantee not in GUARANTEES:
        wrong.add("guarantee", "enum", f"`guarantee` must be one of {', '.join(GUARANTEES)}")
    if quiet_hours is not None:
        with wrong.gathering():
            check_quiet_hours(quiet_hours)
    for name, value, (least, most) in (
        ("validity_seconds", validity_seconds, VALIDITY),
        ("text_days", text_days, TEXT_DAYS),
        ("message_days", message_days, MESSAGE_DAYS),
        ("approval_above", approval_above, APPROVAL),
    ):
        if isinstance(value, int) and not least <= value <= most:
            wrong.add(name, "range", f"`{name}` must be from {least} to {most}")
    wrong.report()
    async with conn.transaction():
        row = await conn.fetchrow(LOCK, organization_id)
        if row is None:
            raise NotFound(resource="organization", id=str(organization_id))
        name, *known = row.values()
        before = SendDefaults(*known)
        after = SendDefaults(
            guarantee or before.guarantee,
            before.validity_seconds if validity_seconds is msgspec.UNSET else validity_seconds,
            before.text_days if text_days is msgspec.UNSET else text_days,
            before.message_days if message_days is msgspec.UNSET else message_days,
            quiet_hours or before.quiet_hours,
            before.approval_above if approval_above is msgspec.UNSET else approval_above,
        )
        await conn.execute(CHANGE, organization_id, *msgspec.structs.astuple(after))
        if after != before:
            await audit.record(
                conn,
                by,
                "organization.configured",
                object_id=organization_id,
                name=name,
                organization_id=organization_id,
                before=before,
                after=after,
            )
    return after
