"""Creating a campaign of either channel: its record, what may be unintended in it, and its progress until it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from heliograph.accounts.organizations import Organization
from heliograph.base.database.pool import Connection
from heliograph.base.process.settings import Settings
from heliograph.campaigns import record
from heliograph.campaigns.record import Campaign
from heliograph.campaigns.views import warnings
from heliograph.campaigns.views.warnings import CampaignWarning
from heliograph.cli.terminal.console import acting_for, on_database, organization
from heliograph.cli.terminal.printing import in_options, say, show
from heliograph.cli.terminal.progress import NAMES, follow


def created(
    settings: Settings,
    create: Callable[[Connection, Organization], Awaitable[Campaign]],
    *,
    org: str | None,
    channel: str,
    json: bool,
    watch: bool,
    columns: Sequence[str],
    **names: str,
) -> None:
    """Create a campaign and show it, with what may be unintended in it; with `watch`, follow it until it ends. `names`:
    options by fields, besides those that both channels have."""

    async def work(conn: Connection) -> tuple[Campaign, list[CampaignWarning]]:
        found = await organization(conn, org)
        async with conn.transaction():
            made = await create(conn, found)
            return made, await warnings.read(conn, acting_for(found), campaign=made)

    with in_options(**NAMES, **names):
        made, found = on_database(work, settings)
    show(record.shown(made), json)
    for one in found:
        say(f"Warning: {one.message[0].lower()}{one.message[1:]}.")
    if watch:
        asyncio.run(follow(settings, org, made.id, channel=channel, json=json, columns=columns))
