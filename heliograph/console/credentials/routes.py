"""Addresses of keys and sender IDs."""

from __future__ import annotations

from heliograph.console.credentials import everywhere, keying
from heliograph.pages.routes import Route, get, post
from heliograph.people.operators.roles import ORGANIZATIONS, ORGANIZATIONS_CHANGE

KEYS, KEY = "/console/organizations/{id}/keys", "/console/organizations/{id}/keys/{key}"

ROUTES: tuple[Route, ...] = (
    get("/console/keys", everywhere.show_keys, permission=ORGANIZATIONS),
    get("/console/senders", everywhere.show_senders, permission=ORGANIZATIONS),
    get(f"{KEYS}/new", keying.show_new, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    post(KEYS, keying.create, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    get(KEY, keying.show, permission=ORGANIZATIONS),
    post(f"{KEY}/rename", keying.rename, permission=ORGANIZATIONS_CHANGE),
    post(f"{KEY}/rotate", keying.rotate, permission=ORGANIZATIONS_CHANGE, is_proved=True),
)
