"""Routes of campaigns, people, tags, imports and opt-outs."""

from __future__ import annotations

from heliograph.dashboard.audience import (
    campaign_recipients,
    campaigns,
    imports,
    opt_outs,
    people,
    tags,
)
from heliograph.dashboard.audience.composing import drafts, new
from heliograph.pages.routes import Route, alike, ending, get, post, reading, shared, table, upload
from heliograph.people.roles import EXPORT, SETTINGS

READ, WRITE = "contacts:read", "contacts:write"
SEE, SEND = "campaigns:read", "campaigns:write"

ROUTES: tuple[Route, ...] = (
    alike("/campaigns", campaigns.show_list, SEE),
    get("/campaigns/new", new.show, SEND),
    table("/campaigns", new.create, SEND),
    table("/campaigns/drafts", drafts.save, SEND),
    post("/campaigns/drafts/{id}/discard", drafts.discard, SEND),
    post("/campaigns/drafts/{id}/restore", drafts.restore, SEND),
    alike("/campaigns/{id}", campaigns.show, SEE),
    post("/campaigns/{id}/pace", campaigns.change_pace, SEND),
    ending(post("/campaigns/{id}/pause", campaigns.pause, SEND)),
    post("/campaigns/{id}/resume", campaigns.resume, SEND),
    post("/campaigns/{id}/approve", campaigns.approve, SEND),
    get("/campaigns/{id}/cancel", campaigns.show_cancel, SEND),
    ending(post("/campaigns/{id}/cancel", campaigns.cancel, SEND)),
    reading(post("/campaigns/{id}/export", campaign_recipients.export, SEND, EXPORT, is_proved=True)),
    get("/contacts", people.show_list, READ),
    get("/contacts/new", people.show_new, WRITE),
    post("/contacts", people.create, WRITE),
    post("/contacts/marked", people.change_marked, WRITE),
    get("/contacts/all", people.show_all, WRITE),
    post("/contacts/all", people.change_all, WRITE),
    post("/contacts/undo", people.undo, WRITE),
    reading(post("/contacts/export", people.export, WRITE, EXPORT, is_proved=True)),
    get("/contacts/tags", tags.show_list, READ),
    get("/contacts/tags/edit", tags.show_edit, WRITE),
    post("/contacts/tags/rename", tags.rename, WRITE),
    post("/contacts/tags/remove", tags.remove, WRITE),
    shared("GET", "/contacts/opt-outs", opt_outs.show_list, READ),
    ending(shared("POST", "/contacts/opt-outs/add", opt_outs.add, WRITE)),
    shared("POST", "/contacts/opt-outs/lift", opt_outs.lift, WRITE),
    reading(shared("POST", "/contacts/opt-outs/export", opt_outs.export, WRITE, EXPORT, is_proved=True)),
    shared("GET", "/contacts/opt-outs/words", opt_outs.show_words, WRITE, SETTINGS),
    shared("POST", "/contacts/opt-outs/words", opt_outs.change_words, WRITE, SETTINGS),
    get("/contacts/imports", imports.show_list, WRITE),
    get("/contacts/import", imports.show_upload, WRITE),
    upload("/contacts/import", imports.upload, WRITE),
    get("/contacts/imports/{id}", imports.show, WRITE),
    get("/contacts/imports/{id}/read", imports.show_read, WRITE),
    post("/contacts/imports/{id}/read", imports.read, WRITE),
    get("/contacts/imports/{id}/map", imports.show_map, WRITE),
    post("/contacts/imports/{id}/map", imports.map_columns, WRITE),
    get("/contacts/imports/{id}/check", imports.show_check, WRITE),
    post("/contacts/imports/{id}/back", imports.back, WRITE),
    post("/contacts/imports/{id}/run", imports.run, WRITE),
    ending(post("/contacts/imports/{id}/stop", imports.stop, WRITE)),
    get("/contacts/imports/{id}/undo", imports.show_undo, WRITE),
    post("/contacts/imports/{id}/undo", imports.undo, WRITE),
    post("/contacts/imports/{id}/discard", imports.discard, WRITE),
    reading(post("/contacts/imports/{id}/rejects", imports.export_rejects, WRITE)),
    get("/contacts/imports/{id}/mend", imports.show_mend, WRITE),
    table("/contacts/imports/{id}/mend", imports.mend, WRITE),
    get("/contacts/{id}", people.show, READ),
    get("/contacts/{id}/edit", people.show_edit, WRITE),
    post("/contacts/{id}", people.change, WRITE),
    post("/contacts/{id}/notes", people.annotate, WRITE),
)
