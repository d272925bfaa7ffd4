"""Operators acting for an organization, like `heliograph … --org`."""

from __future__ import annotations

from heliograph.accounts import organizations
from heliograph.accounts.organizations import Organization
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.pages.requests import Request


async def organization(conn: Connection, request: Request, name: str = "organization") -> Organization:
    """The organization in the address. Raises NotFound."""
    return await organizations.get(conn, id=request.id(name))


def acting_for(request: Request, one: Organization) -> Actor:
    """The operator as an actor in an organization."""
    return Actor(one.id, None, "live", frozenset(), one.state, by=request.principal)
