"""Addresses of keys and sender IDs."""

from __future__ import annotations

from heliograph.console.credentials import ending, everywhere, keying, listing
from heliograph.pages.routes import Route, get, post
from heliograph.people.operators.roles import APPROVE, ORGANIZATIONS, ORGANIZATIONS_CHANGE

KEYS, KEY = "/console/organizations/{id}/keys", "/console/organizations/{id}/keys/{key}"
SENDERS, SENDER = "/console/organizations/{id}/senders", "/console/organizations/{id}/senders/{sender}"

ROUTES: tuple[Route, ...] = (
    get("/console/keys", everywhere.show_keys, permission=ORGANIZATIONS),
    get("/console/senders", everywhere.show_senders, permission=ORGANIZATIONS),
    get(KEYS, listing.show, permission=ORGANIZATIONS),
    get(f"{KEYS}/new", keying.show_new, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    post(KEYS, keying.create, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    get(KEY, keying.show, permission=ORGANIZATIONS),
    post(f"{KEY}/rename", keying.rename, permission=ORGANIZATIONS_CHANGE),
    post(f"{KEY}/rotate", keying.rotate, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    post(f"{KEY}/suspend", listing.suspend, permission=ORGANIZATIONS_CHANGE),
    post(f"{KEY}/resume", listing.resume, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    get(f"{KEY}/revoke", ending.show_revoke, permission=ORGANIZATIONS_CHANGE),
    post(f"{KEY}/revoke", listing.revoke, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    post(SENDERS, listing.ask, permission=ORGANIZATIONS_CHANGE),
    get(f"{SENDER}/suspend", ending.show_suspend, permission=APPROVE),
    post(f"{SENDER}/suspend", listing.suspend_sender, permission=APPROVE),
    post(f"{SENDER}/approve", listing.approve_sender, permission=APPROVE),
    post(f"{SENDER}/default", listing.set_default, permission=ORGANIZATIONS_CHANGE),
)
