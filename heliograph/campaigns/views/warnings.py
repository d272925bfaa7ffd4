"""What may be unintended in a campaign that was just created, for whoever creates one without the dashboard's preview.

The rule nobody may break: a warning refuses nothing and changes nothing.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.campaigns import template
from heliograph.campaigns.record import Campaign
from heliograph.contacts import tags


class CampaignWarning(msgspec.Struct, frozen=True):
    """Something in a campaign that may be unintended."""

    code: Annotated[str, Meta(description="Code of the warning; new codes may be added.", examples=["single_braces"])]
    #: Begins with a capital letter and ends without a period.
    message: Annotated[str, Meta(description="The warning in one sentence.")]


async def read(conn: Connection, actor: Actor, *, campaign: Campaign) -> list[CampaignWarning]:
    """The warnings about a campaign: words that look like placeholders; tags, wanted or excluded, that no contact has.
    They may be misspelled, or get their contacts before it starts."""
    found = []
    written = template.lookalikes(campaign.content.get("message_template", ""))
    if written:
        said = f"Sent as it is, since a placeholder has two braces on each side: {' '.join(written)}"
        found.append(CampaignWarning("single_braces", said))
    named = list(dict.fromkeys([*(campaign.audience_tags or ()), *campaign.excluded_tags]))
    unused = await tags.unused(conn, actor, names=named) if named else []
    if unused:
        found.append(CampaignWarning("unused_tags", f"No contact has the tag {' or '.join(unused)}"))
    return found
