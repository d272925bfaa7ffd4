"""The table of routes: every address of the dashboard, and who has access, room by room."""

from __future__ import annotations

from heliograph.dashboard.audience.routes import ROUTES as AUDIENCE
from heliograph.dashboard.conversations.routes import ROUTES as CONVERSATIONS
from heliograph.dashboard.developers.routes import ROUTES as DEVELOPERS
from heliograph.dashboard.door.routes import ROUTES as DOOR
from heliograph.dashboard.messaging.routes import ROUTES as MESSAGING
from heliograph.dashboard.money.routes import ROUTES as MONEY
from heliograph.dashboard.organization.routes import ROUTES as ORGANIZATION
from heliograph.dashboard.sending.routes import ROUTES as SENDING
from heliograph.dashboard.whatsapp.routes import ROUTES as WHATSAPP
from heliograph.pages.routes import Route, Table

ROUTES: tuple[Route, ...] = (
    *DOOR,
    *MESSAGING,
    *SENDING,
    *AUDIENCE,
    *CONVERSATIONS,
    *WHATSAPP,
    *DEVELOPERS,
    *MONEY,
    *ORGANIZATION,
)

TABLE = Table(ROUTES)
