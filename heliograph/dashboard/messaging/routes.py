"""Routes of home and messages."""

from __future__ import annotations

from heliograph.dashboard.messaging import finding, home, marked, message, messages, palette
from heliograph.pages.routes import Route, alike, ending, get, own, post, public, reading
from heliograph.people.roles import REVEAL

ROUTES: tuple[Route, ...] = (
    public("GET", "/", home.show, is_alike=True),
    own("POST", "/checklist/dismiss", home.dismiss),
    alike("/messages", messages.show_list, "sms:read"),
    reading(post("/messages/export", messages.export, "sms:read", is_proved=True)),
    reading(post("/messages/marked", marked.act, "sms:send")),
    ending(post("/messages/marked/cancel", marked.cancel, "sms:send")),
    post("/messages/again", marked.send_again, "sms:send"),
    get("/messages/all", marked.show_all, "sms:send"),
    ending(post("/messages/all", marked.cancel_all, "sms:send")),
    alike("/messages/{id}", message.show, "sms:read"),
    get("/messages/{id}/cancel", message.show_cancel, "sms:send"),
    ending(post("/messages/{id}/cancel", message.cancel, "sms:send")),
    reading(post("/messages/{id}/reveal", message.reveal, "sms:read", REVEAL, is_proved=True)),
    get("/palette", palette.show, "sms:read"),
    get("/go", finding.go, "sms:read"),
    get("/go/{anything}", finding.go, "sms:read"),
)
