"""Routes of WhatsApp."""

from __future__ import annotations

from heliograph.console.whatsapp import accounts, app, callbacks, connecting, editing, simulating
from heliograph.pages.routes import Route, get, post
from heliograph.people.operators.roles import TRAFFIC, TRAFFIC_CHANGE

ONE = "/console/whatsapp/accounts/{organization}/{id}"
ROUTES: tuple[Route, ...] = (
    get("/console/whatsapp", accounts.show, permission=TRAFFIC),
    get("/console/whatsapp/new", connecting.show, permission=TRAFFIC_CHANGE, is_proved=True),
    post("/console/whatsapp/new", connecting.submit, permission=TRAFFIC_CHANGE, is_proved=True),
    get(ONE, accounts.show_one, permission=TRAFFIC),
    get(f"{ONE}/pause", accounts.show_pause, permission=TRAFFIC_CHANGE),
    post(f"{ONE}/pause", accounts.pause, permission=TRAFFIC_CHANGE),
    post(f"{ONE}/resume", accounts.resume, permission=TRAFFIC_CHANGE),
    post(f"{ONE}/release", accounts.release, permission=TRAFFIC_CHANGE),
    post(f"{ONE}/acknowledge", accounts.acknowledge, permission=TRAFFIC_CHANGE),
    post(f"{ONE}/sync", accounts.sync_now, permission=TRAFFIC_CHANGE),
    get(f"{ONE}/remove", accounts.show_remove, permission=TRAFFIC_CHANGE),
    post(f"{ONE}/remove", accounts.remove, permission=TRAFFIC_CHANGE),
    get(f"{ONE}/simulate", simulating.show, permission=TRAFFIC_CHANGE),
    post(f"{ONE}/simulate", simulating.submit, permission=TRAFFIC_CHANGE),
    post(f"{ONE}/subscribe", accounts.subscribe, permission=TRAFFIC_CHANGE),
    post(f"{ONE}/token", accounts.change_token, permission=TRAFFIC_CHANGE, is_proved=True),
    get(f"{ONE}/edit", editing.show, permission=TRAFFIC_CHANGE),
    post(f"{ONE}/edit", editing.change, permission=TRAFFIC_CHANGE, is_proved=True),
    get(f"{ONE}/app", app.show, permission=TRAFFIC_CHANGE, is_proved=True),
    post(f"{ONE}/app", app.change, permission=TRAFFIC_CHANGE, is_proved=True),
    post("/console/whatsapp/numbers/{organization}/{id}/release", accounts.release_number, permission=TRAFFIC_CHANGE),
    post("/console/whatsapp/templates/{organization}/{id}", accounts.set_template, permission=TRAFFIC_CHANGE),
    get("/console/whatsapp/callbacks", callbacks.show, permission=TRAFFIC),
    post("/console/whatsapp/callbacks/retry", callbacks.retry, permission=TRAFFIC_CHANGE),
    get("/console/whatsapp/callbacks/{id}", callbacks.show_one, permission=TRAFFIC),
    post("/console/whatsapp/callbacks/{id}/retry", callbacks.retry_one, permission=TRAFFIC_CHANGE),
    post("/console/whatsapp/callbacks/{id}/drop", callbacks.drop, permission=TRAFFIC_CHANGE),
)
