"""Routes of messages."""

from __future__ import annotations

from heliograph.console.messages import acting, looking, searching
from heliograph.pages.routes import Route, get, post
from heliograph.people.operators.roles import APPROVE, LOOK

ROUTES: tuple[Route, ...] = (
    get("/console/messages", searching.find, permission=LOOK),
    get("/console/messages/{id}", looking.show, permission=LOOK),
    post("/console/messages/{id}/give-up", acting.give_up, permission=APPROVE),
    post("/console/messages/{id}/elsewhere", acting.elsewhere, permission=APPROVE),
    post("/console/messages/{id}/decide", acting.decide, permission=APPROVE),
    post("/console/messages/{id}/reveal", looking.reveal, permission=LOOK, is_proved=True),
)
