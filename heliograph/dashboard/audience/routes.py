"""Addresses of people, tags and opt-outs."""

from __future__ import annotations

from heliograph.dashboard.audience import opt_outs, people, tags
from heliograph.pages.routes import Route, get, post, shared

READ, WRITE = "contacts:read", "contacts:write"

ROUTES: tuple[Route, ...] = (
    get("/contacts", people.show_list, READ),
    get("/contacts/new", people.show_new, WRITE),
    post("/contacts", people.create, WRITE),
    post("/contacts/marked", people.change_marked, WRITE),
    post("/contacts/undo", people.undo, WRITE),
    post("/contacts/export", people.export, WRITE),
    get("/contacts/tags", tags.show_list, READ),
    get("/contacts/tags/edit", tags.show_edit, WRITE),
    post("/contacts/tags/rename", tags.rename, WRITE),
    post("/contacts/tags/remove", tags.remove, WRITE),
    shared("GET", "/contacts/opt-outs", opt_outs.show_list, READ),
    shared("POST", "/contacts/opt-outs/add", opt_outs.add, WRITE),
    shared("POST", "/contacts/opt-outs/lift", opt_outs.lift, WRITE),
    shared("POST", "/contacts/opt-outs/export", opt_outs.export, WRITE),
    shared("GET", "/contacts/opt-outs/words", opt_outs.show_words, WRITE),
    shared("POST", "/contacts/opt-outs/words", opt_outs.change_words, WRITE),
    get("/contacts/{id}", people.show, READ),
    get("/contacts/{id}/edit", people.show_edit, WRITE),
    post("/contacts/{id}", people.change, WRITE),
)
