"""Routes of the inbox."""

from __future__ import annotations

from heliograph.dashboard.conversations import inbox, marks, reply
from heliograph.pages.routes import Route, get, post
from heliograph.people.roles import CONVERSE

ROUTES: tuple[Route, ...] = (
    get("/inbox", inbox.show_list, "whatsapp:read"),
    get("/inbox/{id}", inbox.show, "whatsapp:read"),
    get("/inbox/{id}/reply", reply.back, "whatsapp:read"),
    post("/inbox/{id}/reply", reply.send, "whatsapp:send", CONVERSE),
    post("/inbox/{id}/assign", marks.assign, "whatsapp:send", CONVERSE),
    post("/inbox/{id}/close", marks.close, "whatsapp:send", CONVERSE),
    post("/inbox/{id}/suppress", marks.suppress, "contacts:write", CONVERSE),
    post("/inbox/{id}/lift", marks.lift, "contacts:write", CONVERSE),
    post("/inbox/{id}/contact", marks.add_contact, "contacts:write", CONVERSE),
)
