"""Routes of approvals."""

from __future__ import annotations

from heliograph.console.approvals import senders
from heliograph.pages.routes import Route, get, post
from heliograph.people.operators.roles import APPROVALS, APPROVE

ROUTES: tuple[Route, ...] = (
    get("/console/approvals", senders.show, permission=APPROVALS),
    post("/console/approvals/{organization}/{id}/approve", senders.approve, permission=APPROVE),
    get("/console/approvals/{organization}/{id}/reject", senders.show_reject, permission=APPROVE),
    post("/console/approvals/{organization}/{id}/reject", senders.reject, permission=APPROVE),
    get("/console/approvals/{organization}/{id}/ask", senders.show_ask, permission=APPROVE),
    post("/console/approvals/{organization}/{id}/ask", senders.ask, permission=APPROVE),
    post("/console/approvals/{organization}/{id}/undo", senders.undo, permission=APPROVE),
)
