"""The table of routes: every address of the dashboard, and who may come in."""

from __future__ import annotations

from heliograph.dashboard import account, audit, home, invitation, keys, messages, senders, sign_in, team
from heliograph.pages.routes import Handler, Route, Table
from heliograph.people.roles import AUDIT, REVEAL, TEAM, TEAM_CHANGE


def _get(
    path: str, handler: Handler, scope: str | None = None, permission: str | None = None, *, is_proved: bool = False
) -> Route:
    return Route(method="GET", path=path, handler=handler, scope=scope, permission=permission, is_proved=is_proved)


def _post(
    path: str, handler: Handler, scope: str | None = None, permission: str | None = None, *, is_proved: bool = False
) -> Route:
    return Route(method="POST", path=path, handler=handler, scope=scope, permission=permission, is_proved=is_proved)


def _public(method: str, path: str, handler: Handler) -> Route:
    return Route(method=method, path=path, handler=handler, is_public=True)


def _own(method: str, path: str, handler: Handler, *, is_proved: bool = False) -> Route:
    """Of the person, whichever organization they belong to."""
    return Route(method=method, path=path, handler=handler, is_personal=True, is_proved=is_proved)


def _shared(method: str, path: str, handler: Handler, scope: str) -> Route:
    """Of what live and test mode share."""
    return Route(method=method, path=path, handler=handler, scope=scope, is_shared=True)


ROUTES: tuple[Route, ...] = (
    _public("GET", "/", home.front),
    _public("GET", "/login", sign_in.show_form),
    _public("POST", "/login", sign_in.sign_in),
    _public("POST", "/login/code", sign_in.sign_in_code),
    _public("GET", "/login/forgotten", sign_in.forgotten),
    _public("GET", "/enter", sign_in.show_enter),
    _public("POST", "/enter", sign_in.enter),
    _public("POST", "/preferences", sign_in.set_preferences),
    _own("POST", "/logout", sign_in.sign_out),
    _own("POST", "/prove", sign_in.prove, is_proved=True),
    _own("GET", "/account", account.show),
    _own("POST", "/account", account.change),
    _own("GET", "/account/password", account.show_password, is_proved=True),
    _own("POST", "/account/password", account.change_password, is_proved=True),
    _own("GET", "/account/factor", account.show_factor, is_proved=True),
    _own("POST", "/account/factor", account.turn_factor_on, is_proved=True),
    _own("POST", "/account/factor/off", account.turn_factor_off, is_proved=True),
    _own("POST", "/account/sessions/end", account.end_others),
    _own("POST", "/account/sessions/{id}/end", account.end_session),
    _own("POST", "/organizations/{id}/look", account.switch),
    _public("GET", "/invitation", invitation.show),
    _public("POST", "/invitation", invitation.read),
    _public("POST", "/invitation/accept", invitation.accept),
    _own("POST", "/checklist/dismiss", home.dismiss),
    _get("/messages", messages.show_list, "sms:read"),
    _get("/messages/{id}", messages.show, "sms:read"),
    _post("/messages/{id}/cancel", messages.cancel, "sms:send"),
    _post("/messages/{id}/reveal", messages.reveal, "sms:read", REVEAL, is_proved=True),
    _get("/go", messages.go, "sms:read"),
    _get("/go/{anything}", messages.go, "sms:read"),
    _get("/team", team.show, permission=TEAM),
    _get("/team/invite", team.show_invite, permission=TEAM_CHANGE, is_proved=True),
    _post("/team/invite", team.invite, permission=TEAM_CHANGE, is_proved=True),
    _post("/team/invitations/{id}/renew", team.renew, permission=TEAM_CHANGE, is_proved=True),
    _post("/team/invitations/{id}/withdraw", team.withdraw, permission=TEAM_CHANGE),
    _get("/team/members/{id}", team.show_member, permission=TEAM_CHANGE, is_proved=True),
    _post("/team/members/{id}/role", team.change_role, permission=TEAM_CHANGE, is_proved=True),
    _post("/team/members/{id}/remove", team.remove, permission=TEAM_CHANGE, is_proved=True),
    _get("/keys", keys.show, "api_keys:read"),
    _get("/keys/new", keys.show_new, "api_keys:write", is_proved=True),
    _post("/keys", keys.make, "api_keys:write", is_proved=True),
    _get("/keys/{id}/revoke", keys.show_revoke, "api_keys:write"),
    _post("/keys/{id}/revoke", keys.revoke, "api_keys:write", is_proved=True),
    _shared("GET", "/senders", senders.show, "sender_ids:read"),
    _shared("GET", "/senders/new", senders.show_new, "sender_ids:write"),
    _shared("POST", "/senders", senders.ask, "sender_ids:write"),
    _shared("POST", "/senders/{id}/default", senders.make_default, "sender_ids:write"),
    _get("/audit", audit.show, permission=AUDIT),
    _post("/audit/export", audit.export, permission=AUDIT),
)

TABLE = Table(ROUTES)
