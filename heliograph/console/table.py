"""The table of routes: every address of the console, and the permission it requires, room by room."""

from __future__ import annotations

from heliograph.console import finding
from heliograph.console.administration.routes import ROUTES as ADMINISTRATION
from heliograph.console.approvals.routes import ROUTES as APPROVALS
from heliograph.console.credentials.routes import ROUTES as CREDENTIALS
from heliograph.console.door.routes import ROUTES as DOOR
from heliograph.console.engine.routes import ROUTES as ENGINE
from heliograph.console.guard.routes import ROUTES as GUARD
from heliograph.console.inbound.routes import ROUTES as INBOUND
from heliograph.console.lookups.routes import ROUTES as LOOKUPS
from heliograph.console.messages.routes import ROUTES as MESSAGES
from heliograph.console.money.routes import ROUTES as MONEY
from heliograph.console.organizations.routes import ROUTES as ORGANIZATIONS
from heliograph.console.receipts.routes import ROUTES as RECEIPTS
from heliograph.console.routing.routes import ROUTES as ROUTING
from heliograph.console.suppliers.routes import ROUTES as SUPPLIERS
from heliograph.console.whatsapp.routes import ROUTES as WHATSAPP
from heliograph.pages.routes import Route, Table, get
from heliograph.people.operators.roles import NOW

ROUTES: tuple[Route, ...] = (
    *DOOR,
    get("/console/go", finding.go, permission=NOW),
    get("/console/go/{anything}", finding.go, permission=NOW),
    *ENGINE,
    *SUPPLIERS,
    *ROUTING,
    *LOOKUPS,
    *APPROVALS,
    *ORGANIZATIONS,
    *CREDENTIALS,
    *MESSAGES,
    *RECEIPTS,
    *INBOUND,
    *GUARD,
    *WHATSAPP,
    *MONEY,
    *ADMINISTRATION,
)

TABLE = Table(ROUTES)
