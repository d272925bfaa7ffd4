"""Everything that the audit log should contain is recorded: writes to the tables in question, what operators do at the
shell, and what keys do over HTTP."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
import typer

from heliograph.api.routes import OPERATIONS
from heliograph.audit.actions import ACTIONS
from heliograph.cli import NOUNS, module_of
from heliograph.console.table import ROUTES as CONSOLE
from heliograph.dashboard.table import ROUTES
from heliograph.suppliers import kinds
from tests.house import calls
from tests.house.project import reads_trees

#: One worker reads the whole project for them.
pytestmark = reads_trees

#: Tables of settings, rights, keys, senders, money, campaigns and people.
AUDITED = (
    *(
        "organizations",
        "api_keys",
        "sender_ids",
        "suppliers",
        "lookup_suppliers",
        "routes",
        "sender_rules",
        "sender_registrations",
        "number_rules",
        "queue_holds",
        "quotas",
        "refunded_classes",
        "wallets",
        "whatsapp_rates",
    ),
    *("tariffs", "tariff_rates", "billing_exports", "billing_lines"),
    *("campaigns", "contacts", "contact_imports", "opt_outs", "webhook_endpoints", "webhook_replays"),
    *("users", "memberships", "invitations", "sign_in_links", "sessions", "recovery_codes", "passkeys"),
    *("operators", "operator_sessions"),
    *("saved_texts", "own_numbers", "whatsapp_apps", "whatsapp_accounts", "whatsapp_numbers", "whatsapp_templates"),
    *("guard_settings", "spend_limits"),
)
#: An interpolated table name may be one of them.
_WRITES = re.compile(rf"\b(?:INSERT INTO|UPDATE|DELETE FROM)\s+((?:{'|'.join(AUDITED)})\b|\{{table\}})")

TRAFFIC = "what messages do by themselves; they are the record"
MIRROR = "what Meta says, or what follows from it"
PROGRESS = "progress of something that is recorded itself"
DRAFTED = "a supplier that carries nothing yet; finishing it is recorded"
NOTHING_YET = "a file of which nothing was imported yet"
#: Functions that write those tables and record nothing, each with its reason.
UNRECORDED = {
    "heliograph.sms.management.trying.start": "that a test message is sent is recorded once it has ended",
    "heliograph.sms.management.trying.keep": "how far a test message has come; that it was sent is recorded",
    "heliograph.sms.management.trying.forget": "the setting that was changed since is recorded",
    "heliograph.contacts.recency._stretch": "when messages left for a contact, which their rows say",
    "heliograph.accounts.api_keys.keyring.Keyring": "when a key was last used",
    "heliograph.notices.conditions._crossed": "that people were told of a low balance, which the notice says",
    "heliograph.accounts.quota.refund_many": TRAFFIC,
    "heliograph.accounts.quota.reset_many": "its callers record the plan or the period",
    "heliograph.accounts.quota.set_resets_at": "its callers record the plan",
    "heliograph.accounts.api_keys.lifecycle._demand_place": "a key's expiry was recorded when it was made",
    "heliograph.people.factors.check": "a code that was used",
    "heliograph.people.passkeys.checking.check": "when a passkey was last used",
    "heliograph.people.passkeys.keeping.remove_all": "the operator who begins anew is recorded",
    "heliograph.sms.by_hand.own_numbers.ask": "a code that was sent; the number that it proves is recorded",
    "heliograph.sms.by_hand.own_numbers.take_back": "a code that was not sent after all",
    "heliograph.sms.by_hand.saved_texts.used": "when a text was last sent",
    "heliograph.people.operators.viewing.take_up": "its beginning is recorded",
    "heliograph.people.sessions.switch": "a person looks elsewhere",
    "heliograph.people.users.choose_columns": "how a person looks at their own lists",
    "heliograph.people.operators.accounts.mark_notices_seen": "until when an operator has read what the bell tells",
    "heliograph.people.invitations.accept": "the membership is recorded",
    "heliograph.people.links.use": "the session that it begins is recorded",
    "heliograph.people.links.end": "the password that ends it is recorded",
    "heliograph.campaigns.audience.forget": "recipients are forgotten by retention",
    "heliograph.campaigns.counting.recount": PROGRESS,
    "heliograph.campaigns.staging.Stager": PROGRESS,
    "heliograph.campaigns.staging._gather": PROGRESS,
    "heliograph.campaigns.pausing.put_off": PROGRESS,
    "heliograph.campaigns.pausing.take_up": PROGRESS,
    "heliograph.campaigns.withdrawal.withdraw": PROGRESS,
    "heliograph.consent.optouts.lift": "somebody's own START, which is a received message",
    "heliograph.consent.optouts.lift_earlier": "somebody's own START, which is a received message",
    "heliograph.consent.importing._take_back": PROGRESS,
    "heliograph.consent.optouts.restore": "an opt-out that stands; its callers record what was taken back",
    "heliograph.consent.optouts.suppress": "somebody's own STOP, which is a received message",
    "heliograph.contacts.tags._step": PROGRESS,
    "heliograph.contacts.importing.advance": PROGRESS,
    "heliograph.contacts.imports.drafts.back": NOTHING_YET,
    "heliograph.contacts.imports.drafts.begin": NOTHING_YET,
    "heliograph.contacts.imports.drafts.check": NOTHING_YET,
    "heliograph.contacts.imports.drafts.discard": NOTHING_YET,
    "heliograph.contacts.imports.drafts.read_as": NOTHING_YET,
    "heliograph.contacts.imports.drafts.uploaded": NOTHING_YET,
    "heliograph.contacts.imports.survey.forget_examples": "its caller records that the import began",
    "heliograph.contacts.records.create_many": "its callers record the contact or the import",
    "heliograph.routes.rules.store_shares": "shares move by measurements; why stands in their rows",
    "heliograph.prices.tariffs._insert": "its caller records the import",
    "heliograph.webhooks.recording.successes.store": "when an endpoint last answered",
    "heliograph.webhooks.recording.stopping.stop": "its caller records that the endpoint was paused or disabled",
    "heliograph.webhooks.replays.advance": PROGRESS,
    "heliograph.webhooks.replays._step": PROGRESS,
    "heliograph.webhooks.replays.cancel": "its caller records that the endpoint was disabled",
    "heliograph.webhooks.replays.hold": "its caller records that the endpoint was paused",
    "heliograph.webhooks.replays.recover": "its caller records that the endpoint came back",
    "heliograph.webhooks.replays.release": "its caller records that the endpoint was resumed",
    "heliograph.whatsapp.callbacks.processing.inbox.Inbox": MIRROR,
    "heliograph.whatsapp.dispatch.holds.sent": MIRROR,
    "heliograph.whatsapp.dispatch.holds.hold_account": MIRROR,
    "heliograph.whatsapp.dispatch.holds.hold_number": MIRROR,
    "heliograph.whatsapp.dispatch.holds.slow_number": MIRROR,
    "heliograph.whatsapp.dispatch.holds.leave_to_try": MIRROR,
    "heliograph.whatsapp.dispatch.holds.tries": MIRROR,
    "heliograph.whatsapp.dispatch.holds.answered": MIRROR,
    "heliograph.whatsapp.mirror.onboarding.change_token": "the token is recorded with the account",
    "heliograph.whatsapp.mirror.apps.record_verified": MIRROR,
    "heliograph.whatsapp.mirror.apps.record_callbacks": MIRROR,
    "heliograph.whatsapp.mirror.apps.record_unsigned": MIRROR,
    "heliograph.whatsapp.mirror.numbers.wake_mirror": MIRROR,
    "heliograph.whatsapp.mirror.numbers.store_numbers": MIRROR,
    "heliograph.whatsapp.mirror.numbers._renewed": MIRROR,
    "heliograph.whatsapp.mirror.numbers._write": MIRROR,
    "heliograph.whatsapp.mirror.reading.Mirror": MIRROR,
    "heliograph.whatsapp.mirror.sync.store": MIRROR,
    "heliograph.whatsapp.mirror.sync.wake_others": MIRROR,
    "heliograph.whatsapp.mirror.sync._store_credential": MIRROR,
    "heliograph.whatsapp.mirror.sync._store_templates": MIRROR,
    "heliograph.whatsapp.mirror.template_sync.doubt": MIRROR,
    "heliograph.whatsapp.mirror.template_sync.store_listing": MIRROR,
    "heliograph.whatsapp.mirror.template_sync._write": MIRROR,
    "heliograph.rekeying._in_place": "its caller records that secrets were encrypted anew",
    "heliograph.whatsapp.money.wallet.book": TRAFFIC,
}


#: What records a change.
RECORD = {
    "heliograph.audit.recording.record",
    "heliograph.audit.recording.record_many",
    "heliograph.webhooks.recording.stopping.stop_disabled",
}


@cache
def writers() -> dict[str, list[str]]:
    """Functions and classes that name a statement which writes an audited table."""
    functions = calls.ast.FunctionDef | calls.ast.AsyncFunctionDef | calls.ast.ClassDef
    statements = {
        name: tables
        for name, node in calls.definitions().items()
        if not isinstance(node, functions)
        and (tables := {table for text in calls.texts([name]) for table in _WRITES.findall(text)})
    }
    modules = {name.rpartition(".")[0] for name in statements}
    found = {}
    for name, node in calls.definitions().items():
        if isinstance(node, functions) and name.rpartition(".")[0] in modules:
            tables = {table for one in calls.references(name) & statements.keys() for table in statements[one]}
            if tables:
                found[name] = sorted(tables)
    return found


def records(name: str) -> bool:
    """Whether it records something, itself or through a function of its own module."""
    module = name.rpartition(".")[0]
    seen, waiting = set[str](), [name]
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        refers = calls.references(one)
        if refers & RECORD:
            return True
        waiting += [other for other in refers if other.rpartition(".")[0] == module]
    return False


def test_whoever_writes_what_is_audited_records_it() -> None:
    found = writers()
    assert len(found) > 40
    silent = {name: tables for name, tables in found.items() if not records(name) and name not in UNRECORDED}
    assert silent == {}


def test_the_exceptions_are_needed() -> None:
    assert [name for name in UNRECORDED if name not in writers() or records(name)] == []


READS, RUNS, WORK = "it reads", "it runs the installation", "it sends, or has work done again"
#: Every command, and the action that it records, or why there is none.
COMMANDS = {
    "up": RUNS,
    "api": RUNS,
    "worker": RUNS,
    "migrate": RUNS,
    "send": WORK,
    "doctor": READS,
    "backup take": "backup.taken",
    "backup list": READS,
    "backup verify": READS,
    "restore": "backup.restored",
    "audit list": READS,
    "audit export": "audit.exported",
    "org create": "organization.created",
    "org rename": "organization.renamed",
    "installation show": READS,
    "installation set": "installation.changed",
    "org list": READS,
    "org show": READS,
    "org plan": "organization.plan_changed",
    "org state": "organization.state_changed",
    "org suspend": "organization.state_changed",
    "org resume": "organization.state_changed",
    "org configure": "organization.configured",
    "org defaults": "organization.configured",
    "org rate-limits": "organization.configured",
    "key create": "api_key.created",
    "key list": READS,
    "key rotate": "api_key.rotated",
    "key rename": "api_key.renamed",
    "key suspend": "api_key.suspended",
    "key resume": "api_key.resumed",
    "key revoke": "api_key.revoked",
    "user create": "member.added",
    "user invite": "invitation.made",
    "user invitations": READS,
    "user withdraw": "invitation.withdrawn",
    "user link": "user.link_made",
    "user list": READS,
    "user remove": "member.removed",
    "user role": "operator.role_changed",
    "mail test": WORK,
    "sender request": "sender_id.requested",
    "rekey": "secrets.rekeyed",
    **dict.fromkeys(("login", "profile list", "profile use", "profile remove", "completion", "guide", "call"), READS),
    **dict.fromkeys(("listen", "trigger", "logs", "requests list", "requests get", "requests tail"), READS),
    "sender approve": "sender_id.reviewed",
    "sender reject": "sender_id.reviewed",
    "sender suspend": "sender_id.reviewed",
    "sender default": "sender_id.default_changed",
    "sender list": READS,
    "sender ask": "sender_id.asked",
    "lookup add": "lookup.added",
    "lookup set": "lookup.changed",
    "lookup pause": "lookup.changed",
    "lookup resume": "lookup.changed",
    "lookup remove": "lookup.changed",
    "lookup list": READS,
    "lookup options": READS,
    "lookup try": READS,
    "supplier add smpp": "supplier.added",
    **{f"supplier add {kind}": "supplier.added" for kind in kinds.HTTP},
    "supplier options": READS,
    "supplier list": READS,
    "supplier show": READS,
    "supplier set": "supplier.changed",
    "supplier pause": "supplier.state_changed",
    "supplier resume": "supplier.state_changed",
    "supplier drain": "supplier.state_changed",
    "supplier reset-circuit": "supplier.circuit_reset",
    "supplier remove": "supplier.state_changed",
    "rates import": "tariff.imported",
    "rates list": READS,
    "rates show": READS,
    "rates draft": READS,
    "prices import": "tariff.imported",
    "prices list": READS,
    "prices show": READS,
    "prices assign": "price_list.assigned",
    "supplier test": "supplier.tested",
    "supplier watch": "supplier.watched",
    "receipts report": READS,
    "receipts unmatched": READS,
    "receipts retry": WORK,
    "receipts match": "receipt.matched",
    "receipts words": READS,
    "receipts explain": "supplier.code_explained",
    "route add": "route.added",
    "route list": READS,
    "route show": READS,
    "route set": "route.changed",
    "route pause": "route.changed",
    "route resume": "route.changed",
    "route remove": "route.removed",
    "route explain": READS,
    "route history": READS,
    "route undo": "route.changed",
    "rule sender": "sender_rule.changed",
    "rule number": "number_rule.changed",
    "rule list": READS,
    "rule remove": "sender_rule.removed",
    "sender register": "sender_id.registered",
    "sender registrations": READS,
    "margin": READS,
    "billing list": READS,
    "billing lock": "billing.locked",
    "billing export": READS,
    "billing verify": READS,
    "org note list": READS,
    "org note add": "organization.noted",
    "org note remove": "organization.noted",
    "quota grant": "quota.changed",
    "quota adjust": "quota.changed",
    "quota show": READS,
    "quota alert": "usage.alert_changed",
    "quota refunds": "refunds.changed",
    "quota limit": "spend_limit.changed",
    "usage months": READS,
    "usage month": "usage.exported",
    "contacts import": "contacts.imported",
    "contacts export": "contacts.exported",
    "tag list": READS,
    "tag rename": "tag.changed",
    "tag remove": "tag.changed",
    "contacts list": READS,
    "contacts find": READS,
    "contacts delete": "contact.deleted",
    "person export": "person.exported",
    "person erase": "person.erased",
    "contacts imports": READS,
    "contacts undo": "contacts.import_undone",
    "campaign list": READS,
    "campaign show": READS,
    "campaign create": "campaign.created",
    "campaign pause": "campaign.moved",
    "campaign resume": "campaign.moved",
    "campaign cancel": "campaign.moved",
    "campaign watch": READS,
    "message list": READS,
    "message show": "message.revealed",
    "message give-up": "message.given_up",
    "message elsewhere": "message.sent_elsewhere",
    "message decide": "message.decided",
    "queue list": READS,
    "hold list": READS,
    "hold add": "queue.held",
    "hold release": "queue.released",
    "queue withdraw": "queue.withdrawn",
    "workers list": READS,
    "workers drain": "worker.drained",
    "workers resume": "worker.resumed",
    "queue hurry": "queue.hurried",
    "guard list": READS,
    "guard release": "guard.released",
    "guard withdraw": "guard.withdrawn",
    "guard rules": "guard.configured",
    "inbound list": "message.revealed",
    "inbound retry": WORK,
    "inbound numbers": READS,
    "inbound assign": "sender_id.reviewed",
    "optout list": READS,
    "optout export": "opt_outs.exported",
    "optout add": "opt_out.added",
    "optout remove": "opt_out.lifted",
    "webhook list": READS,
    "webhook create": "webhook.created",
    "webhook show": READS,
    "webhook update": "webhook.changed",
    "webhook pause": "webhook.changed",
    "webhook resume": "webhook.changed",
    "webhook catcher open": "webhook.created",
    "webhook catcher show": READS,
    "webhook catcher close": "webhook.disabled",
    "webhook attempts": READS,
    "webhook delivery": READS,
    "webhook resend": WORK,
    "webhook replay": "webhook.replayed",
    "webhook replays": READS,
    "webhook test": WORK,
    "webhook rotate": "webhook.secret_rotated",
    "whatsapp account add": "whatsapp_account.added",
    "whatsapp account list": READS,
    "whatsapp account show": READS,
    "whatsapp account update": "whatsapp_account.changed",
    "whatsapp account pause": "whatsapp_account.state_changed",
    "whatsapp account resume": "whatsapp_account.state_changed",
    "whatsapp account release": "whatsapp_account.released",
    "whatsapp account acknowledge": "whatsapp_account.acknowledged",
    "whatsapp account remove": "whatsapp_account.state_changed",
    "whatsapp number list": READS,
    "whatsapp number sync": WORK,
    "whatsapp number release": "whatsapp_number.released",
    "whatsapp template list": READS,
    "whatsapp template sync": WORK,
    "whatsapp template disable": "whatsapp_template.changed",
    "whatsapp template enable": "whatsapp_template.changed",
    "whatsapp campaign create": "campaign.created",
    "whatsapp wallet alert": "wallet.alert_changed",
    "whatsapp campaign list": READS,
    "whatsapp campaign show": READS,
    "whatsapp campaign watch": READS,
    "whatsapp campaign pause": "campaign.moved",
    "whatsapp campaign resume": "campaign.moved",
    "whatsapp campaign cancel": "campaign.moved",
    "whatsapp inbound simulate": "callback.simulated",
    "whatsapp inbound drop": "callback.dropped",
    "whatsapp inbound dead-letters": READS,
    "whatsapp inbound retry": WORK,
    "whatsapp wallet top-up": "wallet.changed",
    "whatsapp wallet adjust": "wallet.changed",
    "whatsapp wallet show": READS,
    "whatsapp wallet ledger": READS,
    "whatsapp rates import": "rates.imported",
    "whatsapp rates list": READS,
    "simulate smsc": RUNS,
    "simulate graph": RUNS,
    "simulate receiver": RUNS,
}
#: Every operation that changes something, likewise.
OPERATED = {
    "sendSms": WORK,
    "cancelSmsMessage": WORK,
    "convertSmsMessage": "it says something of a message",
    "sendWhatsAppMessage": WORK,
    "createSenderIdRequest": "sender_id.requested",
    "createApiKey": "api_key.created",
    "revokeApiKey": "api_key.revoked",
    "createContact": "contact.created",
    "deleteContact": "contact.deleted",
    "changeContact": "contact.changed",
    "changeAccountSettings": "organization.configured",
    "createExport": "contacts.exported",
    "stopExport": WORK,
    "saveText": "saved_text.created",
    "changeSavedText": "saved_text.changed",
    "removeSavedText": "saved_text.removed",
    "addOptOut": "opt_out.added",
    "liftOptOut": "opt_out.lifted",
    "createCampaign": "campaign.created",
    "pauseCampaign": "campaign.moved",
    "resumeCampaign": "campaign.moved",
    "cancelCampaign": "campaign.moved",
    "createWebhook": "webhook.created",
    "disableWebhook": "webhook.disabled",
    "changeWebhook": "webhook.changed",
    "rotateWebhookSecret": "webhook.secret_rotated",
    "openCatcher": "webhook.created",
    "closeCatcher": "webhook.disabled",
    "resendWebhookEvent": WORK,
    "replayWebhookEvents": "webhook.replayed",
    "testWebhook": WORK,
}
#: Every form of the dashboard, likewise.
OWN = "it concerns nobody else"
SUBMITTED = {
    "/console/login": "operator.signed_in",
    "/console/login/code": "operator.signed_in",
    "/console/login/passkey": "operator.signed_in",
    "/console/preferences": OWN,
    "/console/setup": "operator.signed_in",
    "/console/setup/account": "user.password_changed",
    "/console/setup/factor": "user.factor_changed",
    "/console/logout": OWN,
    "/console/prove": OWN,
    "/console/notices/read": OWN,
    "/console/notices/choices": "operator.notices_chosen",
    "/console/account": "user.changed",
    "/console/account/email": "user.email_asked",
    "/console/account/email/withdraw": OWN,
    "/console/account/passkeys": "user.passkey_added",
    "/console/account/passkeys/{id}/remove": "user.passkey_removed",
    "/console/account/sessions/end": "operator.sessions_ended",
    "/console/account/sessions/{id}/end": "operator.sessions_ended",
    "/console/approvals/{organization}/{id}/approve": "sender_id.reviewed",
    "/console/approvals/{organization}/{id}/reject": "sender_id.reviewed",
    "/console/approvals/{organization}/{id}/undo": "sender_id.reviewed",
    "/console/approvals/{organization}/{id}/ask": "sender_id.asked",
    "/senders/{id}/answer": "sender_id.answered",
    "/console/organizations/{id}/notes": "organization.noted",
    "/console/organizations/{id}/notes/{note}/remove": "organization.noted",
    "/console/organizations/{id}/erase": "person.erased",
    "/console/messages/{id}/give-up": "message.given_up",
    "/console/messages/{id}/elsewhere": "message.sent_elsewhere",
    "/console/messages/{id}/decide": "message.decided",
    "/console/messages/{id}/reveal": "message.revealed",
    "/console/queue/hold": "queue.held",
    "/console/queue/withdraw": "queue.withdrawn",
    "/console/queue/{id}/hurry": "queue.hurried",
    "/console/queue/holds/{id}/release": "queue.released",
    "/console/queue/workers/{id}/drain": "worker.drained",
    "/console/queue/workers/{id}/resume": "worker.resumed",
    "/console/wallets/{id}": "wallet.changed",
    "/console/inbound/reveal": "message.revealed",
    "/console/inbound/assign": "sender_id.reviewed",
    "/console/inbound/retry": WORK,
    "/console/whatsapp/new": "whatsapp_account.added",
    "/console/whatsapp/accounts/{organization}/{id}/pause": "whatsapp_account.state_changed",
    "/console/whatsapp/accounts/{organization}/{id}/resume": "whatsapp_account.state_changed",
    "/console/whatsapp/accounts/{organization}/{id}/release": "whatsapp_account.released",
    "/console/whatsapp/accounts/{organization}/{id}/acknowledge": "whatsapp_account.acknowledged",
    "/console/whatsapp/accounts/{organization}/{id}/remove": "whatsapp_account.state_changed",
    "/console/whatsapp/accounts/{organization}/{id}/simulate": "callback.simulated",
    "/console/whatsapp/accounts/{organization}/{id}/sync": WORK,
    "/console/whatsapp/accounts/{organization}/{id}/subscribe": "whatsapp_account.changed",
    "/console/whatsapp/accounts/{organization}/{id}/edit": "whatsapp_account.changed",
    "/console/whatsapp/accounts/{organization}/{id}/token": "whatsapp_account.changed",
    "/console/whatsapp/accounts/{organization}/{id}/app": "whatsapp_app.changed",
    "/console/whatsapp/numbers/{organization}/{id}/release": "whatsapp_number.released",
    "/console/whatsapp/templates/{organization}/{id}": "whatsapp_template.changed",
    "/console/guard/holds/{id}/release": "guard.released",
    "/console/guard/holds/{id}/withdraw": "guard.withdrawn",
    "/console/guard/rules/{organization}": "guard.configured",
    "/console/whatsapp/callbacks/retry": WORK,
    "/console/whatsapp/callbacks/{id}/retry": WORK,
    "/console/whatsapp/callbacks/{id}/drop": "callback.dropped",
    "/console/rates/whatsapp/import": "rates.imported",
    "/console/refunds": "refunds.changed",
    "/console/billing/{month}/lock": "billing.locked",
    "/console/receipts/unmatched/retry": WORK,
    "/console/receipts/unmatched/cure": "supplier.changed",
    "/console/receipts/unmatched/{id}/retry": WORK,
    "/console/receipts/unmatched/{id}/match": "receipt.matched",
    "/console/receipts/words/state": "supplier.changed",
    "/console/receipts/words/error": "supplier.code_explained",
    "/console/suppliers/{id}/pause": "supplier.state_changed",
    "/console/suppliers/{id}/resume": "supplier.state_changed",
    "/console/rates/import": "tariff.imported",
    "/console/rates/cards/{id}/assign": "price_list.assigned",
    "/console/lookups/new": "lookup.added",
    "/console/lookups/{id}/edit": "lookup.changed",
    "/console/lookups/{id}/key": "lookup.changed",
    "/console/lookups/{id}/pause": "lookup.changed",
    "/console/lookups/{id}/resume": "lookup.changed",
    "/console/lookups/{id}/remove": "lookup.changed",
    "/console/lookups/{id}/try": READS,
    "/console/routes/registrations": "sender_id.registered",
    "/console/routes/rules/sender": "sender_rule.changed",
    "/console/routes/rules/sender/{id}/remove": "sender_rule.removed",
    "/console/routes/rules/number": "number_rule.changed",
    "/console/routes/rules/number/{id}/remove": "number_rule.removed",
    "/console/routes/new": "route.added",
    "/console/routes/{id}/edit": "route.changed",
    "/console/routes/{id}/pause": "route.changed",
    "/console/routes/{id}/resume": "route.changed",
    "/console/routes/{id}/remove": "route.removed",
    "/console/routes/{id}/undo/{entry}": "route.changed",
    "/console/suppliers/new": DRAFTED,
    "/console/drafts/{id}/connection": DRAFTED,
    "/console/drafts/{id}/test": DRAFTED,
    "/console/drafts/{id}/limits": DRAFTED,
    "/console/drafts/{id}/dialect": DRAFTED,
    "/console/drafts/{id}/message": "supplier.tested",
    "/console/suppliers/{id}/test": "supplier.tested",
    "/console/suppliers/{id}/reach": "supplier.tested",
    "/console/suppliers/{id}/long": "supplier.tested",
    "/console/suppliers/{id}/long/arrived": PROGRESS,
    "/console/suppliers/{id}/long/parts": "supplier.changed",
    "/console/suppliers/{id}/long/joining": "supplier.changed",
    "/console/suppliers/{id}/watch": "supplier.watched",
    "/console/suppliers/{id}/cure": "supplier.changed",
    "/console/drafts/{id}/cure": DRAFTED,
    "/console/drafts/{id}/long": "supplier.tested",
    "/console/drafts/{id}/long/arrived": DRAFTED,
    "/console/drafts/{id}/long/parts": DRAFTED,
    "/console/drafts/{id}/long/joining": DRAFTED,
    "/console/drafts/{id}/place": "supplier.added",
    "/console/drafts/{id}/discard": DRAFTED,
    "/console/suppliers/{id}/drain": "supplier.state_changed",
    "/console/suppliers/{id}/remove": "supplier.state_changed",
    "/console/suppliers/{id}/reset-circuit": "supplier.circuit_reset",
    "/console/suppliers/{id}/edit": "supplier.changed",
    "/console/suppliers/{id}/password": "supplier.changed",
    "/console/organizations": "organization.created",
    "/console/organizations/{id}/suspend": "organization.state_changed",
    "/console/organizations/{id}/resume": "organization.state_changed",
    "/console/organizations/{id}/plan": "organization.plan_changed",
    "/console/organizations/{id}/spending": "spend_limit.changed",
    "/console/organizations/{id}/countries": "organization.configured",
    "/console/organizations/{id}/state": "organization.state_changed",
    "/console/organizations/{id}/texts": "organization.configured",
    "/console/organizations/{id}/campaigns/{campaign}/pause": "campaign.moved",
    "/console/organizations/{id}/campaigns/{campaign}/resume": "campaign.moved",
    "/console/organizations/{id}/campaigns/{campaign}/cancel": "campaign.moved",
    "/console/organizations/{id}/settings": "organization.configured",
    "/console/organizations/{id}/kept": "organization.configured",
    "/console/organizations/{id}/rates": "organization.configured",
    "/console/organizations/{id}/close": "organization.state_changed",
    "/console/organizations/{id}/keys": "api_key.created",
    "/console/organizations/{id}/keys/{key}/rename": "api_key.renamed",
    "/console/organizations/{id}/keys/{key}/rotate": "api_key.rotated",
    "/console/organizations/{id}/keys/{key}/suspend": "api_key.suspended",
    "/console/organizations/{id}/keys/{key}/resume": "api_key.resumed",
    "/console/organizations/{id}/keys/{key}/revoke": "api_key.revoked",
    "/console/organizations/{id}/senders": "sender_id.requested",
    "/console/organizations/{id}/senders/{sender}/suspend": "sender_id.reviewed",
    "/console/organizations/{id}/senders/{sender}/approve": "sender_id.reviewed",
    "/console/organizations/{id}/senders/{sender}/default": "sender_id.default_changed",
    "/console/organizations/{id}/view": "organization.viewed",
    "/console/organizations/{id}/rename": "organization.renamed",
    "/console/organizations/{id}/quota": "quota.changed",
    "/console/organizations/{id}/members/invite": "invitation.made",
    "/console/organizations/{id}/members/{member}/role": "member.role_changed",
    "/console/organizations/{id}/members/{member}/link": "user.link_made",
    "/console/organizations/{id}/members/{member}/remove": "member.removed",
    "/console/organizations/{id}/invitations/{invitation}/renew": "invitation.made",
    "/console/organizations/{id}/invitations/{invitation}/withdraw": "invitation.withdrawn",
    "/console/audit/export": "audit.exported",
    "/console/settings": "installation.changed",
    "/console/settings/mail": WORK,
    "/console/operators": "operator.added",
    "/console/operators/{id}/role": "operator.role_changed",
    "/console/operators/{id}/link": "user.link_made",
    "/console/operators/{id}/sessions/end": "operator.sessions_ended",
    "/console/operators/{id}/remove": "operator.removed",
    "/login": "user.signed_in",
    "/login/code": "user.signed_in",
    "/login/passkey": "user.signed_in",
    "/login/forgotten": "a worker records the link once it makes one",
    "/account/email": "user.email_asked",
    "/account/email/withdraw": OWN,
    "/account/email/confirm": "user.email_changed",
    "/account/passkeys": "user.passkey_added",
    "/account/passkeys/{id}/remove": "user.passkey_removed",
    "/enter": "user.signed_in",
    "/view": OWN,
    "/preferences": OWN,
    "/columns/{list}": OWN,
    "/logout": OWN,
    "/prove": OWN,
    "/account": "user.changed",
    "/account/password": "user.password_changed",
    "/account/number": WORK,
    "/account/number/code": "user.number_changed",
    "/account/number/remove": "user.number_changed",
    "/account/factor": "user.factor_changed",
    "/account/factor/off": "user.factor_changed",
    "/account/sessions/end": "user.sessions_ended",
    "/account/sessions/{id}/end": "user.sessions_ended",
    "/organizations/{id}/look": OWN,
    "/invitation": READS,
    "/invitation/accept": "member.added",
    "/checklist/dismiss": OWN,
    "/notices/read": OWN,
    "/notices/choices": "member.notices_chosen",
    "/messages/marked": WORK,
    "/messages/marked/cancel": WORK,
    "/messages/again": WORK,
    "/messages/all": "messages.canceling",
    "/messages/export": "messages.exported",
    "/messages/{id}/cancel": WORK,
    "/send": WORK,
    "/send/preview": READS,
    "/send/reply": WORK,
    "/send/reply/preview": READS,
    "/send/template": WORK,
    "/send/template/preview": READS,
    "/inbox/{id}/reply": WORK,
    "/inbox/{id}/assign": "conversation.assigned",
    "/inbox/{id}/close": "conversation.closed",
    "/inbox/{id}/suppress": "opt_out.added",
    "/inbox/{id}/lift": "opt_out.lifted",
    "/inbox/{id}/contact": "contact.created",
    "/messages/{id}/reveal": "message.revealed",
    "/campaigns": "campaign.created",
    "/campaigns/{id}/pause": "campaign.moved",
    "/campaigns/{id}/approve": "campaign.approved",
    "/campaigns/{id}/resume": "campaign.moved",
    "/campaigns/{id}/cancel": "campaign.moved",
    "/campaigns/{id}/pace": "campaign.paced",
    "/campaigns/drafts": "a draft is no campaign",
    "/campaigns/drafts/{id}/discard": "a draft is no campaign",
    "/campaigns/drafts/{id}/restore": "a draft is no campaign",
    "/campaigns/{id}/export": "campaign.exported",
    "/contacts": "contact.created",
    "/contacts/{id}": "contact.changed",
    "/contacts/{id}/notes": "contact.changed",
    "/contacts/marked": "contact.deleted",
    "/contacts/undo": "contact.created",
    "/contacts/export": "contacts.exported",
    "/contacts/all": "contacts.tagging",
    "/contacts/import": NOTHING_YET,
    "/contacts/imports/{id}/read": NOTHING_YET,
    "/contacts/imports/{id}/map": NOTHING_YET,
    "/contacts/imports/{id}/back": NOTHING_YET,
    "/contacts/imports/{id}/discard": NOTHING_YET,
    "/contacts/imports/{id}/run": "contacts.imported",
    "/contacts/imports/{id}/stop": "contacts.imported",
    "/contacts/imports/{id}/undo": "contacts.import_undone",
    "/contacts/imports/{id}/rejects": "contacts.exported",
    "/contacts/imports/{id}/mend": "contacts.imported",
    "/contacts/tags/rename": "tag.changed",
    "/contacts/tags/remove": "tag.changed",
    "/contacts/opt-outs/add": "opt_out.added",
    "/contacts/opt-outs/lift": "opt_out.lifted",
    "/contacts/opt-outs/export": "opt_outs.exported",
    "/contacts/opt-outs/words": "organization.configured",
    "/team/invite": "invitation.made",
    "/team/invitations/{id}/renew": "invitation.made",
    "/team/invitations/{id}/withdraw": "invitation.withdrawn",
    "/team/members/{id}/role": "member.role_changed",
    "/team/members/{id}/remove": "member.removed",
    "/webhooks": "webhook.created",
    "/webhooks/catcher": "webhook.created",
    "/webhooks/catcher/close": "webhook.disabled",
    "/webhooks/{id}/edit": "webhook.changed",
    "/webhooks/{id}/disable": "webhook.disabled",
    "/webhooks/{id}/enable": "webhook.changed",
    "/webhooks/{id}/pause": "webhook.changed",
    "/webhooks/{id}/resume": "webhook.changed",
    "/webhooks/{id}/rotate": "webhook.secret_rotated",
    "/webhooks/{id}/test": WORK,
    "/webhooks/{id}/events/{event}/resend": WORK,
    "/webhooks/{id}/events/{event}/reveal": "event.revealed",
    "/webhooks/{id}/replay": "webhook.replayed",
    "/keys": "api_key.created",
    "/keys/{id}/revoke": "api_key.revoked",
    "/keys/{id}/rotate": "api_key.rotated",
    "/keys/{id}/rename": "api_key.renamed",
    "/keys/check": READS,
    "/exports/everything": "messages.exported",
    "/exports/{id}/file": "export.fetched",
    "/exports/{id}/stop": WORK,
    "/audit/export": "audit.exported",
    "/usage/export": "usage.exported",
    "/settings/defaults": "organization.configured",
    "/settings/notices": "organization.notices_chosen",
    "/settings/limits": "spend_limit.changed",
    "/settings/guard": "guard.configured",
    "/settings/general": "organization.configured",
    "/settings/messages": "organization.configured",
    "/settings/security": "organization.configured",
    "/settings/close": "organization.state_changed",
    "/wallet/alert": "wallet.alert_changed",
    "/usage/alert": "usage.alert_changed",
    "/senders": "sender_id.requested",
    "/texts": "saved_text.created",
    "/texts/new": READS,
    "/texts/{id}": "saved_text.changed",
    "/texts/{id}/remove": "saved_text.removed",
    "/senders/{id}/default": "sender_id.default_changed",
}
#: Actions of neither a command nor an operation.
BY_ITSELF = {"organization.period_begun", "authentication.failed"}
#: Actions that a command records in addition.
BESIDES = {
    "whatsapp_app.changed": "whatsapp account update",
    "user.created": "user create",
    "user.removed": "user remove",
    "member.role_changed": "user role",
    "number_rule.removed": "rule remove",
    "person.erasing": "person erase",
    "sender_id.seconded": "sender approve",
}


@cache
def commands() -> dict[str, str]:
    """Every command by its words, and its function as named by `calls`."""
    found = {}

    def walk(command: Any, words: str) -> None:
        if inner_commands := getattr(command, "commands", None):
            for name, inner in inner_commands.items():
                walk(inner, f"{words} {name}")
        else:
            function = getattr(command.callback, "__wrapped__", command.callback)
            found[words] = f"{function.__module__}.{function.__name__}"

    for noun in NOUNS:
        module = module_of(noun)
        if hasattr(module, "app"):
            walk(typer.main.get_command(module.app), noun)
        else:
            found[noun] = f"{module.__name__}.{module.command.__name__}"
    return found


def handler(id: str) -> str:
    """An operation's handler, as named by `calls`."""
    snake = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", id.replace("WhatsApp", "Whatsapp"))
    (name,) = [
        one for one in calls.definitions() if one.startswith("heliograph.api.operations.") and one.endswith(f".{snake}")
    ]
    return name


def test_every_command_is_told_apart() -> None:
    assert commands().keys() == COMMANDS.keys()


def test_every_operation_is_told_apart() -> None:
    assert {one.id for one in OPERATIONS if one.mutates} == OPERATED.keys()


@pytest.mark.parametrize(("words", "action"), [(one, text) for one, text in COMMANDS.items() if text in ACTIONS])
def test_a_command_records_its_action(words: str, action: str) -> None:
    assert action in calls.texts(calls.reached([commands()[words]]))


@pytest.mark.parametrize(("id", "action"), [(one, text) for one, text in OPERATED.items() if text in ACTIONS])
def test_an_operation_records_its_action(id: str, action: str) -> None:
    assert action in calls.texts(calls.reached([handler(id)]))


def test_every_form_is_told_apart() -> None:
    assert {route.path for route in (*ROUTES, *CONSOLE) if route.method == "POST"} == SUBMITTED.keys()


@pytest.mark.parametrize(("path", "action"), [(one, text) for one, text in SUBMITTED.items() if text in ACTIONS])
def test_a_form_records_its_action(path: str, action: str) -> None:
    (submitted,) = [route.handler for route in (*ROUTES, *CONSOLE) if (route.method, route.path) == ("POST", path)]
    assert action in calls.texts(calls.reached([f"{submitted.__module__}.{submitted.__qualname__}"]))


def test_no_two_actions_are_described_alike() -> None:
    """They are the options of the audit log's filter."""
    assert len(set(ACTIONS.values())) == len(ACTIONS)


def test_every_action_is_somebodys() -> None:
    done = (
        {text for text in (*COMMANDS.values(), *OPERATED.values(), *SUBMITTED.values()) if text in ACTIONS}
        | BY_ITSELF
        | BESIDES.keys()
    )
    assert ACTIONS.keys() - done == set()
    for action, words in BESIDES.items():
        assert action in calls.texts(calls.reached([commands()[words]]))
