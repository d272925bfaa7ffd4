"""Routes of the sending pages."""

from __future__ import annotations

from heliograph.dashboard.sending import own_number, reply, sms, template, texts
from heliograph.pages.routes import Route, get, post, reading, shared

ROUTES: tuple[Route, ...] = (
    get("/send", sms.show, "sms:send"),
    post("/send", sms.send, "sms:send"),
    get("/send/preview", sms.back, "sms:send"),
    reading(post("/send/preview", sms.show_preview, "sms:send")),
    get("/send/template", template.back, "whatsapp:send"),
    post("/send/template", template.send, "whatsapp:send"),
    get("/send/template/preview", template.back, "whatsapp:send"),
    reading(post("/send/template/preview", template.show_preview, "whatsapp:send")),
    get("/send/reply", reply.back, "whatsapp:send"),
    post("/send/reply", reply.send, "whatsapp:send"),
    get("/send/reply/preview", reply.back, "whatsapp:send"),
    reading(post("/send/reply/preview", reply.show_preview, "whatsapp:send")),
    get("/texts", texts.show_list, "sms:read"),
    shared("POST", "/texts", texts.create, "sms:send"),
    shared("GET", "/texts/new", texts.show_new, "sms:send"),
    shared("POST", "/texts/new", texts.keep, "sms:send"),
    shared("GET", "/texts/{id}", texts.show, "sms:send"),
    shared("POST", "/texts/{id}", texts.change, "sms:send"),
    shared("GET", "/texts/{id}/remove", texts.show_remove, "sms:send"),
    shared("POST", "/texts/{id}/remove", texts.remove, "sms:send"),
    shared("GET", "/account/number", own_number.show, "sms:send"),
    shared("POST", "/account/number", own_number.ask, "sms:send"),
    reading(shared("POST", "/account/number/code", own_number.prove, "sms:send")),
    reading(shared("POST", "/account/number/remove", own_number.remove, "sms:send")),
)
