"""Whatever the command line can do to run an installation, the console can do, and vice versa.

The only list of pairs: a command and the address that does the same, in the console or, for an organization's own
people, in the dashboard. A new command fails here until it has its page, or a reason to have none.
"""

from __future__ import annotations

import inspect
import sys

import pytest

from heliograph.accounts import organizations
from heliograph.audit.actions import ACTIONS
from heliograph.cli import NOUNS
from heliograph.console.table import ROUTES as CONSOLE
from heliograph.dashboard.table import ROUTES
from heliograph.suppliers import kinds
from tests.house import calls
from tests.house.project import reads_trees
from tests.house.test_audited import COMMANDS, SUBMITTED, commands

#: One worker reads the whole project for them.
pytestmark = reads_trees

#: Commands without a page, with the reason; a noun stands for all of its commands.
WITHOUT_PAGE = {
    **dict.fromkeys(("up", "api", "worker", "simulate"), "processes of the machine that it is called on"),
    **dict.fromkeys(("migrate", "restore", "rekey"), "changes what the console itself stands on"),
    **dict.fromkeys(
        ("login", "profile", "send", "call", "listen", "trigger", "logs", "requests"),
        "a program's: it asks the API with a key, which the dashboard never holds",
    ),
    **dict.fromkeys(("completion", "guide"), "of the terminal itself"),
    "backup": "files on the machine where the database is; Health says which were made, and which were tried",
    "billing verify": "compares a file that somebody has with the checksum, which the month's page shows",
    "person export": "a file with whole numbers and texts, for the person it is about; the console shows none",
}
ONE = "/console/organizations/{id}"
ACCOUNT = "/console/whatsapp/accounts/{organization}/{id}"
#: What only a person does, in a browser or not at all.
BY_PERSON = {
    "operator.signed_in",
    "operator.notices_chosen",
    "operator.sessions_ended",
    "organization.viewed",
    "user.changed",
    "user.password_changed",
    "user.email_asked",
    "user.email_changed",
    "user.factor_changed",
    "user.passkey_added",
    "user.passkey_removed",
}
#: Actions that a command records in addition to those in COMMANDS: with `--operator`, or with `--app-secret-file`.
BESIDES = {
    "whatsapp_app.changed": "whatsapp account update",
    "operator.added": "user create",
    "operator.removed": "user remove",
    "member.role_changed": "user role",
    "number_rule.removed": "rule remove",
}
#: Command: the address of its page, or of its form.
PAIRS = {
    "installation show": "/console/settings",
    "installation set": "/console/settings",
    "org create": "/console/organizations",
    "org rename": f"{ONE}/rename",
    "org list": "/console/organizations",
    "org show": ONE,
    "org plan": f"{ONE}/plan",
    "org state": f"{ONE}/state",
    "org suspend": f"{ONE}/suspend",
    "org resume": f"{ONE}/resume",
    "org configure": f"{ONE}/settings",
    "org rate-limits": f"{ONE}/rates",
    "org note list": f"{ONE}/notes",
    "org note add": f"{ONE}/notes",
    "org note remove": f"{ONE}/notes/{{note}}/remove",
    "user invite": f"{ONE}/members/invite",
    "user invitations": f"{ONE}/members",
    "user withdraw": f"{ONE}/invitations/{{invitation}}/withdraw",
    "user list": f"{ONE}/members",
    "user link": f"{ONE}/members/{{member}}/link",
    "user remove": f"{ONE}/members/{{member}}/remove",
    "user role": "/console/operators/{id}/role",
    "key create": f"{ONE}/keys",
    "key list": "/console/keys",
    "key rename": f"{ONE}/keys/{{key}}/rename",
    "key rotate": f"{ONE}/keys/{{key}}/rotate",
    "key suspend": f"{ONE}/keys/{{key}}/suspend",
    "key resume": f"{ONE}/keys/{{key}}/resume",
    "key revoke": f"{ONE}/keys/{{key}}/revoke",
    "sender request": f"{ONE}/senders",
    "sender list": "/console/senders",
    "sender approve": "/console/approvals/{organization}/{id}/approve",
    "sender ask": "/console/approvals/{organization}/{id}/ask",
    "sender reject": "/console/approvals/{organization}/{id}/reject",
    "sender suspend": f"{ONE}/senders/{{sender}}/suspend",
    "sender default": f"{ONE}/senders/{{sender}}/default",
    "sender register": "/console/routes/registrations",
    "sender registrations": "/console/routes/registrations",
    "quota grant": f"{ONE}/quota",
    "quota adjust": f"{ONE}/quota",
    "quota show": ONE,
    "quota alert": f"{ONE}/spending",
    "quota refunds": "/console/refunds",
    "quota limit": f"{ONE}/spending",
    "supplier list": "/console/suppliers",
    "supplier show": "/console/suppliers/{id}",
    **dict.fromkeys((f"supplier add {kind}" for kind in ("smpp", *kinds.HTTP)), "/console/drafts/{id}/place"),
    "supplier test": "/console/suppliers/{id}/test",
    "supplier watch": "/console/suppliers/{id}/watch",
    "supplier options": "/console/suppliers/new",
    "supplier set": "/console/suppliers/{id}/edit",
    "supplier pause": "/console/suppliers/{id}/pause",
    "supplier resume": "/console/suppliers/{id}/resume",
    "supplier drain": "/console/suppliers/{id}/drain",
    "supplier reset-circuit": "/console/suppliers/{id}/reset-circuit",
    "supplier remove": "/console/suppliers/{id}/remove",
    "rates import": "/console/rates/import",
    "rates list": "/console/rates",
    "rates show": "/console/rates/cards/{id}",
    "rates draft": "/console/rates/cards/{id}/draft",
    "prices import": "/console/rates/import",
    "prices list": "/console/rates",
    "prices show": "/console/rates/cards/{id}",
    "prices assign": "/console/rates/cards/{id}/assign",
    "margin": "/console/margins",
    "lookup list": "/console/lookups",
    "lookup options": "/console/lookups/new",
    "lookup add": "/console/lookups/new",
    "lookup set": "/console/lookups/{id}/edit",
    "lookup try": "/console/lookups/{id}/try",
    "lookup pause": "/console/lookups/{id}/pause",
    "lookup resume": "/console/lookups/{id}/resume",
    "lookup remove": "/console/lookups/{id}/remove",
    "route list": "/console/routes",
    "route show": "/console/routes/{id}",
    "route explain": "/console/routes/explain",
    "route history": "/console/routes/history",
    "route undo": "/console/routes/{id}/undo/{entry}",
    "route add": "/console/routes/new",
    "route set": "/console/routes/{id}/edit",
    "route pause": "/console/routes/{id}/pause",
    "route resume": "/console/routes/{id}/resume",
    "route remove": "/console/routes/{id}/remove",
    "rule list": "/console/routes/rules",
    "rule sender": "/console/routes/rules/sender",
    "rule number": "/console/routes/rules/number",
    "rule remove": "/console/routes/rules/sender/{id}/remove",
    "receipts report": "/console/receipts",
    "receipts unmatched": "/console/receipts/unmatched",
    "receipts retry": "/console/receipts/unmatched/retry",
    "receipts match": "/console/receipts/unmatched/{id}/match",
    "receipts words": "/console/receipts/words",
    "receipts explain": "/console/receipts/words/error",
    "inbound list": "/console/inbound/reveal",
    "inbound numbers": "/console/inbound",
    "inbound assign": "/console/inbound/assign",
    "inbound retry": "/console/inbound/retry",
    "billing list": "/console/billing",
    "billing lock": "/console/billing/{month}/lock",
    "billing export": "/console/billing/{month}/file",
    "usage months": f"{ONE}/money",
    "audit list": "/console/audit",
    "audit export": "/console/audit/export",
    "doctor": "/console/health",
    "mail test": "/console/settings/mail",
    "person erase": f"{ONE}/erase",
    "campaign list": f"{ONE}/campaigns",
    "campaign pause": f"{ONE}/campaigns/{{campaign}}/pause",
    "campaign resume": f"{ONE}/campaigns/{{campaign}}/resume",
    "campaign cancel": f"{ONE}/campaigns/{{campaign}}/cancel",
    "webhook list": f"{ONE}/webhooks",
    "message list": "/console/messages",
    "message show": "/console/messages/{id}/reveal",
    "message give-up": "/console/messages/{id}/give-up",
    "message elsewhere": "/console/messages/{id}/elsewhere",
    "message decide": "/console/messages/{id}/decide",
    "queue list": "/console/queue",
    "hold list": "/console/queue",
    "hold add": "/console/queue/hold",
    "queue withdraw": "/console/queue/withdraw",
    "queue hurry": "/console/queue/{id}/hurry",
    "hold release": "/console/queue/holds/{id}/release",
    "guard list": "/console/guard",
    "guard release": "/console/guard/holds/{id}/release",
    "guard withdraw": "/console/guard/holds/{id}/withdraw",
    "guard rules": "/console/guard/rules/{organization}",
    "workers list": "/console/queue",
    "workers drain": "/console/queue/workers/{id}/drain",
    "workers resume": "/console/queue/workers/{id}/resume",
    "whatsapp account add": "/console/whatsapp/new",
    "whatsapp account list": "/console/whatsapp",
    "whatsapp account show": ACCOUNT,
    "whatsapp account update": f"{ACCOUNT}/token",
    "whatsapp account pause": f"{ACCOUNT}/pause",
    "whatsapp account resume": f"{ACCOUNT}/resume",
    "whatsapp account release": f"{ACCOUNT}/release",
    "whatsapp account remove": f"{ACCOUNT}/remove",
    "whatsapp account acknowledge": f"{ACCOUNT}/acknowledge",
    "whatsapp number list": ACCOUNT,
    "whatsapp number sync": f"{ACCOUNT}/sync",
    "whatsapp number release": "/console/whatsapp/numbers/{organization}/{id}/release",
    "whatsapp template list": ACCOUNT,
    "whatsapp template sync": f"{ACCOUNT}/sync",
    "whatsapp template disable": "/console/whatsapp/templates/{organization}/{id}",
    "whatsapp template enable": "/console/whatsapp/templates/{organization}/{id}",
    "whatsapp inbound simulate": f"{ACCOUNT}/simulate",
    "whatsapp inbound drop": "/console/whatsapp/callbacks/{id}/drop",
    "whatsapp inbound dead-letters": "/console/whatsapp/callbacks",
    "whatsapp inbound retry": "/console/whatsapp/callbacks/retry",
    "whatsapp rates import": "/console/rates/whatsapp/import",
    "whatsapp rates list": "/console/rates/whatsapp",
    "whatsapp campaign list": f"{ONE}/campaigns",
    "whatsapp campaign pause": f"{ONE}/campaigns/{{campaign}}/pause",
    "whatsapp campaign resume": f"{ONE}/campaigns/{{campaign}}/resume",
    "whatsapp campaign cancel": f"{ONE}/campaigns/{{campaign}}/cancel",
    "whatsapp wallet top-up": "/console/wallets/{id}",
    "whatsapp wallet adjust": "/console/wallets/{id}",
    "whatsapp wallet show": "/console/wallets/{id}",
    "whatsapp wallet ledger": "/console/wallets/{id}",
}
#: Commands for an organization's people, who have pages for them in the dashboard.
DASHBOARD = {
    "org defaults": "/settings/defaults",
    # An invited person, including the first owner, is a member once they accept.
    "user create": "/invitation/accept",
    "usage month": "/usage/export",
    "contacts import": "/contacts/imports/{id}/run",
    "contacts imports": "/contacts/imports",
    "contacts undo": "/contacts/imports/{id}/undo",
    "contacts export": "/contacts/export",
    "contacts list": "/contacts",
    "contacts find": "/contacts",
    "contacts delete": "/contacts/marked",
    "tag list": "/contacts/tags",
    "tag rename": "/contacts/tags/rename",
    "tag remove": "/contacts/tags/remove",
    "optout list": "/contacts/opt-outs",
    "optout export": "/contacts/opt-outs/export",
    "optout add": "/contacts/opt-outs/add",
    "optout remove": "/contacts/opt-outs/lift",
    "campaign create": "/campaigns",
    "campaign show": "/campaigns/{id}",
    "campaign watch": "/campaigns/{id}",
    "webhook create": "/webhooks",
    "webhook show": "/webhooks/{id}",
    "webhook update": "/webhooks/{id}/edit",
    "webhook pause": "/webhooks/{id}/pause",
    "webhook resume": "/webhooks/{id}/resume",
    "webhook catcher open": "/webhooks/catcher",
    "webhook catcher show": "/webhooks/catcher",
    "webhook catcher close": "/webhooks/catcher/close",
    "webhook attempts": "/webhooks/{id}",
    "webhook delivery": "/webhooks/{id}/events/{event}",
    "webhook resend": "/webhooks/{id}/events/{event}/resend",
    "webhook replay": "/webhooks/{id}/replay",
    "webhook replays": "/webhooks/{id}",
    "webhook test": "/webhooks/{id}/test",
    "webhook rotate": "/webhooks/{id}/rotate",
    "whatsapp campaign create": "/campaigns",
    "whatsapp campaign show": "/campaigns/{id}",
    "whatsapp campaign watch": "/campaigns/{id}",
    "whatsapp wallet alert": "/wallet/alert",
}


def test_each_command_has_its_page() -> None:
    """Every noun of the command line is compared, or listed as without a page."""
    known = {words for words in COMMANDS if not {words, words.partition(" ")[0]} & WITHOUT_PAGE.keys()}
    assert known == PAIRS.keys() | DASHBOARD.keys()
    assert len(PAIRS) + len(DASHBOARD) == len(known), "a command stands in one list"
    left = {words for words in WITHOUT_PAGE if words not in COMMANDS}
    assert left <= NOUNS.keys() - {words.partition(" ")[0] for words in known}, "a reason for what is not there"


def test_the_pages_are_there() -> None:
    paths = {route.path for route in CONSOLE}
    assert [path for path in PAIRS.values() if path not in paths] == []
    paths = {route.path for route in ROUTES}
    assert [path for path in DASHBOARD.values() if path not in paths] == []


@pytest.mark.parametrize("words", [words for words in (*PAIRS, *DASHBOARD) if COMMANDS[words] in ACTIONS])
def test_a_command_and_its_form_record_the_same(words: str) -> None:
    action = COMMANDS[words]
    routes, path = (CONSOLE, PAIRS[words]) if words in PAIRS else (ROUTES, DASHBOARD[words])
    (handler,) = [one.handler for one in routes if (one.method, one.path) == ("POST", path)]
    assert action in calls.texts(calls.reached([f"{handler.__module__}.{handler.__qualname__}"]))


def test_each_rule_of_an_organization_is_set_in_the_console() -> None:
    """The parameters of `organizations.configure`, by whichever form."""
    rules = inspect.signature(organizations.configure).parameters.keys() - {"conn", "id", "by"}
    forms = [one for one in CONSOLE if one.method == "POST" and one.path.startswith(f"{ONE}/")]
    sources = {inspect.getsource(sys.modules[one.handler.__module__]) for one in forms}
    assert {rule for rule in rules if not any(f"{rule}=" in source for source in sources)} == set()


def test_what_the_console_changes_a_command_changes_too() -> None:
    """Vice versa, by what is recorded."""
    done = {*COMMANDS.values(), *BESIDES.keys()}
    changed = {action for path, action in SUBMITTED.items() if path.startswith("/console/") and action in ACTIONS}
    assert changed - done - BY_PERSON == set()
    for action, words in BESIDES.items():
        assert action in calls.texts(calls.reached([commands()[words]]))
