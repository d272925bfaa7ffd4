"""Routes of WhatsApp."""

from __future__ import annotations

from heliograph.console.whatsapp import accounts, app, callbacks, connecting, editing, simulating
from heliograph.pages.routes import Route, get, post
from heliograph.people.operators.roles import CARRIAGE, CARRIAGE_CHANGE

ONE = "/console/whatsapp/accounts/{organization}/{id}"
ROUTES: tuple[Route, ...] = (
    get("/console/whatsapp", accounts.show, permission=CARRIAGE),
    get("/console/whatsapp/new", connecting.show, permission=CARRIAGE_CHANGE, is_proved=True),
    post("/console/whatsapp/new", connecting.submit, permission=CARRIAGE_CHANGE, is_proved=True),
    get(ONE, accounts.show_one, permission=CARRIAGE),
    get(f"{ONE}/pause", accounts.show_pause, permission=CARRIAGE_CHANGE),
    post(f"{ONE}/pause", accounts.pause, permission=CARRIAGE_CHANGE),
    post(f"{ONE}/resume", accounts.resume, permission=CARRIAGE_CHANGE),
    post(f"{ONE}/release", accounts.release, permission=CARRIAGE_CHANGE),
    post(f"{ONE}/acknowledge", accounts.acknowledge, permission=CARRIAGE_CHANGE),
    post(f"{ONE}/sync", accounts.sync_now, permission=CARRIAGE_CHANGE),
    get(f"{ONE}/remove", accounts.show_remove, permission=CARRIAGE_CHANGE),
    post(f"{ONE}/remove", accounts.remove, permission=CARRIAGE_CHANGE),
    get(f"{ONE}/simulate", simulating.show, permission=CARRIAGE_CHANGE),
    post(f"{ONE}/simulate", simulating.submit, permission=CARRIAGE_CHANGE),
    post(f"{ONE}/subscribe", accounts.subscribe, permission=CARRIAGE_CHANGE),
    post(f"{ONE}/token", accounts.change_token, permission=CARRIAGE_CHANGE, is_proved=True),
    get(f"{ONE}/edit", editing.show, permission=CARRIAGE_CHANGE),
    post(f"{ONE}/edit", editing.change, permission=CARRIAGE_CHANGE, is_proved=True),
    get(f"{ONE}/app", app.show, permission=CARRIAGE_CHANGE, is_proved=True),
    post(f"{ONE}/app", app.change, permission=CARRIAGE_CHANGE, is_proved=True),
    post("/console/whatsapp/numbers/{organization}/{id}/release", accounts.release_number, permission=CARRIAGE_CHANGE),
    post("/console/whatsapp/templates/{organization}/{id}", accounts.set_template, permission=CARRIAGE_CHANGE),
    get("/console/whatsapp/callbacks", callbacks.show, permission=CARRIAGE),
    post("/console/whatsapp/callbacks/retry", callbacks.retry, permission=CARRIAGE_CHANGE),
    get("/console/whatsapp/callbacks/{id}", callbacks.show_one, permission=CARRIAGE),
    post("/console/whatsapp/callbacks/{id}/retry", callbacks.retry_one, permission=CARRIAGE_CHANGE),
    post("/console/whatsapp/callbacks/{id}/drop", callbacks.drop, permission=CARRIAGE_CHANGE),
)
