"""Routes of the organization's own pages."""

from __future__ import annotations

from heliograph.dashboard.organization import (
    audit,
    exports,
    limits,
    notice_choices,
    notices,
    senders,
    settings,
    state,
    team,
)
from heliograph.pages.routes import Route, ending, get, own, post, reading, shared
from heliograph.people.roles import AUDIT, OWNERS, SETTINGS, TEAM, TEAM_CHANGE

ROUTES: tuple[Route, ...] = (
    get("/team", team.show, permission=TEAM),
    get("/team/invite", team.show_invite, permission=TEAM_CHANGE, is_proved=True),
    post("/team/invite", team.invite, permission=TEAM_CHANGE, is_proved=True),
    post("/team/invitations/{id}/renew", team.renew, permission=TEAM_CHANGE, is_proved=True),
    ending(post("/team/invitations/{id}/withdraw", team.withdraw, permission=TEAM_CHANGE)),
    get("/team/members/{id}", team.show_member, permission=TEAM_CHANGE, is_proved=True),
    post("/team/members/{id}/role", team.change_role, permission=TEAM_CHANGE, is_proved=True),
    ending(post("/team/members/{id}/remove", team.remove, permission=TEAM_CHANGE, is_proved=True)),
    shared("GET", "/senders", senders.show, "sender_ids:read"),
    shared("GET", "/senders/new", senders.show_new, "sender_ids:write"),
    shared("POST", "/senders", senders.ask, "sender_ids:write"),
    shared("POST", "/senders/{id}/answer", senders.answer, "sender_ids:write"),
    shared("POST", "/senders/{id}/default", senders.make_default, "sender_ids:write"),
    get("/audit", audit.show, permission=AUDIT),
    reading(post("/audit/export", audit.export, permission=AUDIT)),
    get("/exports", exports.show, "account:read"),
    reading(post("/exports/everything", exports.everything, permission=OWNERS, is_proved=True)),
    reading(post("/exports/{id}/file", exports.fetch, "account:read")),
    reading(post("/exports/{id}/stop", exports.stop, "account:read")),
    own("GET", "/state", state.show),
    get("/notices", notices.show, "account:read"),
    reading(post("/notices/read", notices.read, "account:read")),
    get("/notices/choices", notice_choices.show_own, "account:read"),
    reading(post("/notices/choices", notice_choices.choose_own, "account:read")),
    get("/settings/notices", notice_choices.show_all, permission=SETTINGS),
    post("/settings/notices", notice_choices.choose_all, permission=SETTINGS),
    get("/settings", settings.show, permission=SETTINGS),
    post("/settings/general", settings.change_general, permission=SETTINGS),
    post("/settings/messages", settings.change_messages, permission=SETTINGS),
    post("/settings/defaults", settings.change_defaults, permission=SETTINGS),
    post("/settings/security", settings.change_security, permission=SETTINGS, is_proved=True),
    get("/settings/limits", limits.show, permission=SETTINGS),
    post("/settings/limits", limits.change_limit, permission=SETTINGS, is_proved=True),
    post("/settings/guard", limits.change_guard, permission=SETTINGS, is_proved=True),
    get("/settings/close", settings.show_close, permission=OWNERS),
    post("/settings/close", settings.close, permission=OWNERS, is_proved=True),
)
