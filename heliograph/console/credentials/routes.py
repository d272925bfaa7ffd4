"""Routes of keys and sender IDs."""

from __future__ import annotations

from heliograph.console.credentials import everywhere, keying, keys, senders
from heliograph.pages.routes import Route, get, post
from heliograph.people.operators.roles import APPROVE, ORGANIZATIONS, ORGANIZATIONS_CHANGE

KEYS, KEY = "/console/organizations/{id}/keys", "/console/organizations/{id}/keys/{key}"
SENDERS, SENDER = "/console/organizations/{id}/senders", "/console/organizations/{id}/senders/{sender}"

ROUTES: tuple[Route, ...] = (
    get("/console/keys", everywhere.show_keys, permission=ORGANIZATIONS),
    get("/console/senders", everywhere.show_senders, permission=ORGANIZATIONS),
    get(KEYS, keys.show, permission=ORGANIZATIONS),
    get(f"{KEYS}/new", keying.show_new, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    post(KEYS, keying.create, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    get(KEY, keying.show, permission=ORGANIZATIONS),
    post(f"{KEY}/rename", keying.rename, permission=ORGANIZATIONS_CHANGE),
    post(f"{KEY}/rotate", keying.rotate, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    post(f"{KEY}/suspend", keys.suspend, permission=ORGANIZATIONS_CHANGE),
    post(f"{KEY}/resume", keys.resume, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    get(f"{KEY}/revoke", keys.show_revoke, permission=ORGANIZATIONS_CHANGE),
    post(f"{KEY}/revoke", keys.revoke, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    post(SENDERS, senders.ask, permission=ORGANIZATIONS_CHANGE),
    get(f"{SENDER}/suspend", senders.show_suspend, permission=APPROVE),
    post(f"{SENDER}/suspend", senders.suspend, permission=APPROVE),
    post(f"{SENDER}/approve", senders.approve, permission=APPROVE),
    post(f"{SENDER}/default", senders.set_default, permission=ORGANIZATIONS_CHANGE),
)
