"""The frame around every screen: the navigation rail, filtered by role, and its marks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heliograph.notices.kinds import KINDS
from heliograph.pages.pieces import places
from heliograph.pages.pieces.places import Action, Groups, Place
from heliograph.pages.requests import MODES, Request
from heliograph.people import roles

#: Templates of the dashboard's screens.
TEMPLATES = Path(__file__).with_name("templates")


#: Groups of the rail with their headings.
GROUPS: Groups = (
    (
        "",
        (
            Place("/", "Home", "house", key="h"),
            Place("/send", "Send", "send", scope="sms:send"),
            Place("/messages", "Messages", "messages", scope="sms:read", key="m"),
            Place("/inbox", "Inbox", "mail", scope="whatsapp:read", key="i"),
            Place("/campaigns", "Campaigns", "megaphone", scope="campaigns:read", key="c"),
            Place("/contacts", "Contacts", "contact", scope="contacts:read", key="p"),
            Place("/templates", "Templates", "book", scope="whatsapp:read"),
        ),
    ),
    (
        "Developers",
        (
            Place("/webhooks", "Webhooks", "webhook", scope="webhooks:read", key="w"),
            Place("/requests", "Requests", "monitor", scope="webhooks:read", permission=roles.DEVELOP, key="r"),
            Place("/keys", "API keys", "key", scope="api_keys:read", key="k"),
            Place("/docs", "API reference", "book"),
        ),
    ),
    (
        "Account",
        (
            Place("/usage", "Usage", "chart", permission=roles.USAGE, key="u"),
            Place("/wallet", "Wallet", "wallet", permission=roles.USAGE),
            Place("/senders", "Sender IDs", "tag", scope="sender_ids:read", key="s"),
            Place("/numbers", "WhatsApp numbers", "messages", scope="whatsapp:read"),
            Place("/team", "Team", "users", permission=roles.TEAM, key="t"),
            Place("/audit", "Audit log", "history", permission=roles.AUDIT),
            Place("/settings", "Settings", "settings", permission=roles.SETTINGS),
        ),
    ),
)

#: What the palette offers in addition to the places.
ACTIONS = (
    Action("Send a message", "/send", scope="sms:send"),
    Action("Create an API key", "/keys/new", scope="api_keys:write"),
    Action("Create a test key", "/keys/new?mode=test", scope="api_keys:write", mode="test"),
    Action("New campaign", "/campaigns/new", scope="campaigns:write"),
    Action("New contact", "/contacts/new", scope="contacts:write"),
    Action("Opt-outs", "/contacts/opt-outs", scope="contacts:read"),
    Action("Exports", "/exports"),
    Action("Import contacts", "/contacts/import", scope="contacts:write"),
    Action("Request a sender ID", "/senders/new", scope="sender_ids:write", mode="live"),
    Action("Invite somebody", "/team/invite", permission=roles.TEAM_CHANGE),
    Action("Register a webhook endpoint", "/webhooks/new", scope="webhooks:write"),
    Action("Switch to test mode", "/?mode=test"),
    Action("Switch to live mode", "/?mode=live"),
    Action("My account", "/account"),
    Action("Change my password", "/account/password"),
)

#: The dashboard's own keyboard shortcuts.
KEYS = (
    ("s", "Send a message"),
    ("m", "Live or test mode"),
    ("w", "To the explanation, on a message's page"),
    ("o", "You, and your organizations"),
)

#: Query parameters that are a position in a list: the other mode's list has other rows.
WITHIN = ("after", "csv", "far", "open", "top")
#: Query parameters that name what a form is filled in from, by path: these objects belong to a single mode.
FILLED = {
    "/send": ("sent", "again", "number", "template"),
    "/campaigns/new": ("draft", "copy", "from", "import", "number", "template"),
}


def frame(request: Request) -> dict[str, Any]:
    """The values that the frame's templates need."""
    # Only kinds that the reader has not silenced, and that their role is notified of.
    person = request.person if request.session else None
    news = [] if person is None else [name for name in person.unread if name not in person.silent]
    known = [KINDS[name] for name in news if name in KINDS]
    unread = [one for one in known if request.may(one.scope, one.permission, mode="live")]
    finds = request.may("sms:read")
    return {
        "unread": len(unread),
        "modes": {mode: _in_mode(request, mode) for mode in MODES},
        **places.frame(request, GROUPS, ACTIONS, KEYS, source="/palette" if finds else "", has_search=finds),
    }


def _in_mode(request: Request, mode: str) -> str:
    """This page's address in a mode, with its filters and its time range. Single objects, results of
    forms and values that prefill them do not exist in the other mode: the list or the empty form takes their place.
    That of a page which the role does not see in that mode is taken by its list, too, or else by the home page."""
    is_seen = request.may(request.scope, mode=mode)
    if not is_seen or "{" in request.route or request.method == "POST":
        above = [one for _, places in GROUPS for one in places if request.path.startswith(f"{one.path}/")]
        listed = [one.path for one in above if request.may(one.scope, one.permission, mode=mode)]
        if listed or not is_seen:
            return request.to(listed[0] if listed else "/", mode=mode)
    return request.again(mode=mode, **dict.fromkeys((*WITHIN, *FILLED.get(request.path, ())), ""))
