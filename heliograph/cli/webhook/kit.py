"""What the commands for webhooks share: finding an endpoint's organization, and parsing times."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Annotated, Literal
from uuid import UUID

import typer

from heliograph.accounts import organizations
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.cli.terminal.console import acting_for
from heliograph.webhooks import endpoints

EndpointId = Annotated[UUID, typer.Argument(metavar="ENDPOINT_ID", help="Id of the endpoint, from `webhook list`.")]
Mode = Annotated[Literal["live", "test"], typer.Option(help="Whether it receives live or test events.")]


async def owner(conn: Connection, id: UUID) -> Actor:
    """An operator, acting for the organization that an endpoint belongs to."""
    return acting_for(await organizations.get(conn, id=await endpoints.owner(conn, id=id)))


_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def moment(text: str, option: str) -> datetime:
    """Parse `2h` (ago), or a time with its zone."""
    ago = re.fullmatch(r"(\d{1,5})([mhd])", text)
    if ago:
        return clock.now() - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    at = clock.time_in(text)
    if at is None:
        raise typer.BadParameter("must be a time such as 2027-01-31T00:00:00Z, or 90m, 2h, 7d ago", param_hint=option)
    return at
