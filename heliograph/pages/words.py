"""Labels for the code's identifiers: roles, statuses, modes. Each is looked up in the reader's language.

It has over 400 lines because translators, and whoever renames something, find all of them in one place.
"""

from __future__ import annotations

from collections.abc import Mapping

from heliograph.pages import languages

MODES: Mapping[str, str] = {"live": "Live", "test": "Test"}
ROLES: Mapping[str, str] = {
    "owner": "Owner",
    "admin": "Admin",
    "developer": "Developer",
    "sender": "Sender",
    "viewer": "Viewer",
    "billing": "Billing",
    "viewing": "Operator, viewing",
    "root": "Root",
    "operator": "Operator",
    "support": "Support",
    "finance": "Finance",
    "auditor": "Auditor",
}
OPERATORS_EXPLAINED: Mapping[str, str] = {
    "root": "Everything, other operators included.",
    "operator": "Everything but changing operators.",
    "support": "Can look into messages if they give a reason; sees suppliers, routes and the queue.",
    "finance": "Quotas, plans, wallets and rates.",
    "auditor": "Sees everything but messages, changes nothing.",
}
ROLES_EXPLAINED: Mapping[str, str] = {
    "owner": "Everything, other owners included.",
    "admin": "Everything but changing owners.",
    "developer": "Webhooks and requests, test keys and test sends. Reads live messages without texts and numbers.",
    "sender": "Sends messages and campaigns, keeps contacts.",
    "viewer": "Reads messages without texts or full numbers.",
    "billing": "Usage and wallet, nothing else.",
}
#: What per-minute limits count.
BUCKETS: Mapping[str, str] = {
    "sms_send": "Sends",
    "campaigns": "Campaigns",
    "mutations": "Other changes",
    "reads": "Reads",
}
#: Kinds of notices as offered in settings, and ways of delivering them.
NOTICES: Mapping[str, str] = {
    "campaign.completed": "A campaign is finished",
    "campaign.paused": "A campaign is stalled",
    "campaign.approval": "A campaign waits for an approval",
    "campaign.approved": "A campaign that you created was approved",
    "campaign.canceled": "A campaign that you created was canceled by somebody else",
    "campaign.failed": "A campaign failed",
    "webhook.failing": "Webhooks to an endpoint are failing",
    "webhook.disabled": "An endpoint was disabled",
    "import.finished": "An import is finished",
    "sender.approved": "A sender ID was approved",
    "sender.rejected": "A sender ID was rejected",
    "sender.asked": "The operator asks about a sender ID",
    "sender.suspended": "A sender ID was suspended",
    "template.rejected": "A template was rejected",
    "template.paused": "A template is paused",
    "template.disabled": "A template was disabled",
    "template.marketing": "A template became marketing",
    "number.quality": "The quality of a number has fallen",
    "quota.used": "80, 95 or 100 % of the quota is used",
    "usage.day": "A day has more messages than its alert",
    "key.ending": "A key expires within a week",
    "key.network": "A key was used from a new network",
    "sign_in.new": "Somebody signed in as you in a new browser",
    "sign_in.failed": "Several attempts to sign in as you have failed",
    "member.sign_in_failed": "Several attempts to sign in as a member of the team have failed",
    "member.joined": "Somebody has joined the team",
    "export.ready": "A file is ready",
    "export.failed": "A file could not be written",
    "wallet.low": "The wallet is below its alert",
}
#: The same for operators.
OPERATOR_NOTICES: Mapping[str, str] = {
    "check.failed": "A check is failing",
    "check.warning": "A check gives a warning",
    "supplier.lost": "A supplier has no session",
    "receipts.missing": "Receipts do not arrive, or match no message",
    "approval.waiting": "A sender ID waits for a decision",
}
NOTICE_WAYS: Mapping[str, str] = {"bell": "Bell", "mail": "Mail", "webhook": "Webhook"}
#: Why a mail was not sent, by the reason given by `base/network/smtp.py`.
MAIL_REASONS: Mapping[str, str] = {
    "address": "Mail cannot be sent to an address of this form.",
    "unreachable": "The mail server could not be reached.",
    "tls": "The mail server could not be reached securely.",
    "credentials": "The mail server did not accept this service.",
    "sender": "The mail server did not accept this service.",
    "refused": "The mail server refused the mail or its recipient.",
    "busy": "The mail server asked to try again later.",
    "slow": "The mail server did not answer in time.",
    "late": "It could not be sent in time.",
    "unreadable": "It could not be sent in time.",
}
#: What to do after an attempt whose outcome is unknown.
GUARANTEES = (
    ("at_least_once", "Send again: it may arrive twice", "For codes and reminders, which must arrive."),
    ("at_most_once", "Do not send again: it may not arrive", "For what must not be read twice."),
)
#: When marketing waits: value, label, explanation.
QUIET_HOURS = (
    ("country", "As usual in the recipient's country", "From 20:00 to 08:00 where nothing else is known."),
    ("own", "The same everywhere", "In the recipient's local time, from and to:"),
    ("off", "It does not wait", "Marketing may arrive at night."),
)
#: States of a sender ID's registration in a country.
REGISTRATIONS: Mapping[str, str] = {
    "asked": "Registration requested",
    "pending": "Being registered",
    "registered": "Registered",
    "refused": "Registration refused",
}
#: Contents of an export, and its state.
EXPORT_KINDS: Mapping[str, str] = {
    "messages": "Messages",
    "contacts": "Contacts",
    "audit": "Audit log",
    "usage": "Usage",
    "opt_outs": "Opt-outs",
    "rejects": "Rejected rows",
    "skipped": "Skipped recipients",
    "cancel": "Messages canceled",
    "tag": "Contacts tagged or untagged",
}
CHANGE_STATES: Mapping[str, str] = {"running": "Under way", "finished": "Done"}
EXPORT_STATES: Mapping[str, str] = {
    "running": "Being written",
    "finished": "Ready",
    "stopped": "Stopped",
    "failed": "Failed",
    "erased": "Erased",
}
PROFILES: Mapping[str, str] = {
    "sms_only": "SMS sending only",
    "sms": "SMS",
    "whatsapp": "WhatsApp",
    "read_only": "Read only",
    "full_access": "Full access",
}
PROFILES_EXPLAINED: Mapping[str, str] = {
    "sms_only": "For a program that only sends. A lost key can do the least harm.",
    "sms": "Sends SMS, follows them, and registers webhooks.",
    "whatsapp": "Sends WhatsApp messages, follows them, and registers webhooks.",
    "read_only": "Sees everything and changes nothing.",
    "full_access": "Everything, other keys included.",
}
#: What is wrong with a field of the form for a key.
KEY_FORM: Mapping[str | tuple[str, str], str] = {
    ("name", "pattern"): "A name must not contain control characters.",
    "name": "A name must have 1 to 100 characters.",
    "allowed_ips": "List addresses or networks, such as 203.0.113.0/24.",
    "profile": "Choose one of the profiles.",
    "expires": "Choose one of the dates that are offered.",
}
#: Entries in the usage list, and what usage can be split by.
USAGE_ENTRIES: Mapping[str, str] = {
    "usage": "Message",
    "refund": "Refund",
    "adjustment": "Adjustment",
    "grant": "Grant",
}
USAGE_SPLITS: Mapping[str, str] = {
    "channel": "By channel",
    "sender": "By sender",
    "country": "By country",
    "campaign": "By campaign",
    "tag": "By tag of the audience",
    "key": "By API key",
    "day": "By day",
    "reference": "By prefix of the reference",
}
#: Reasons in ledgers that the service, or a command, gives itself (`lists/ledgers.py`).
LEDGER_REASONS: Mapping[str, str] = {
    "canceled": languages.LEDGER + "canceled",
    "campaign canceled": languages.LEDGER + "campaign canceled",
    "withdrawn by the operator": languages.LEDGER + "withdrawn by the operator",
    "not sent": languages.LEDGER + "not sent",
    "refused": languages.LEDGER + "refused",
    "not delivered": languages.LEDGER + "not delivered",
    "failed": languages.LEDGER + "failed",
    "expired": languages.LEDGER + "expired",
    "rejected": languages.LEDGER + "rejected",
    "outcome unknown": languages.LEDGER + "outcome unknown",
    "new period": languages.LEDGER + "new period",
    "new period: remaining quota expired": languages.LEDGER + "new period: remaining quota expired",
    "initial": languages.LEDGER + "initial",
    "operator": languages.LEDGER + "operator",
    "top-up": languages.LEDGER + "top-up",
    "demo": languages.LEDGER + "demo",
}
#: Movements of a wallet, and categories of charges.
MOVEMENTS: Mapping[str, str] = {
    "top_up": "Top-up",
    "adjustment": "Adjustment",
    "reserve": "Reserved",
    "consume": "Charged",
    "release": "Given back",
    "reprice": "Price corrected",
    "month": "Monthly total",
}
BILLING_CATEGORIES: Mapping[str, str] = {
    "utility": "Utility",
    "authentication": "Authentication",
    "authentication-international": "Authentication from abroad",
    "marketing": "Marketing",
    "service": "Replies",
    "": "Other",
}
USAGE_FORM: Mapping[str, str] = {
    "month": "Enter a month as 2026-11.",
    "by": "Choose one of the splits. A split by reference can use its first 1 to 99 characters.",
}
#: Choices for the encoding of texts: (value, label, explanation).
ENCODINGS: tuple[tuple[str, str, str], ...] = (
    ("off", "Off", "Texts are sent exactly as they are written."),
    (
        "smart",
        "Typographic characters",
        "Curly quotes and long dashes become plain ones, so that more fits into a segment.",
    ),
    ("accents", "Accents too", "Letters such as á become a if that halves the number of segments."),
)
#: What to do with messages to numbers that get unusually many.
GUARD_POLICIES: tuple[tuple[str, str, str], ...] = (
    ("", "The usual", "For the first two weeks they are sent and noted; from then on they wait for the operator."),
    ("monitor", "Only note it", "They are sent."),
    (
        "hold",
        "Let them wait",
        "They are accepted and wait until the operator has reviewed them; codes expire meanwhile.",
    ),
    ("refuse", "Refuse them", "The sender gets an error, and nothing is accepted."),
    ("ask", "Ask first", "They are refused until the sender has made sure that a person asked for them."),
)
#: Message classes, as labeled in the limits.
GUARD_CLASSES: Mapping[str, str] = {
    "otp": "One-time codes",
    "transactional": "Transactional messages",
    "marketing": "Marketing messages",
}
#: What is wrong with a field of the limits.
LIMITS_FORM: Mapping[tuple[str, str], str] = {
    ("segments", "range"): "Enter a whole number of segments, 1 or more.",
    ("segments", "fixed"): "The operator set this limit: only they can change it.",
    ("scope", "enum"): "Choose one of the keys.",
    ("safe", "pattern"): "Enter the 5 to 15 digits that numbers begin with, including the country code, one per line.",
    ("safe", "count"): "At most 500 lines.",
    ("policy", "enum"): "Choose one of those that are offered.",
    **{(f"limit_{name}", "range"): "Enter a whole number of messages, from 1 to 10,000,000." for name in GUARD_CLASSES},
}
#: What is wrong with a field of the settings.
SETTINGS_FORM: Mapping[tuple[str, str], str] = {
    ("name", "length"): "A name must have 1 to 200 characters.",
    ("name", "pattern"): "A name must not contain control characters.",
    ("name", "taken"): "Another organization has this name.",
    ("country", "enum"): "Choose one of the countries.",
    ("time_zone", "enum"): "Choose one of the time zones.",
    ("approval_above", "range"): "Enter a number from 0 to 1,000,000, or nothing.",
    ("quiet_hours", "pattern"): "Enter two different times, such as 20:00 and 08:00.",
}
#: Who acted, if no name is known.
AUTHORS: Mapping[str, str] = {
    "person": "a person",
    "key": "an API key",
    "operator": "the operator",
    "cli": "the operator",
    "system": "the service",
    "unknown": "somebody unknown",
}
#: Of an organization to which no messages were granted.
NO_QUOTA = "There is no quota: SMS are refused. Ask the operator for it."
#: What is wrong with a field of the form for a sender ID.
SENDER_FORM: Mapping[str, str] = {
    "value": "Use 3 to 11 letters, digits, spaces or . - _ & with at least one letter, or 3 to 15 digits.",
}
#: What a supplier's rule does with senders, and which kinds of them it may be for.
SENDER_RULES: Mapping[str, str] = {
    "allow": "sent unchanged",
    "replace": "replaced",
    "refuse": "refused",
    "register": "sent once it is registered",
}
SENDER_KINDS: Mapping[str, str] = {"alphanumeric": "names", "numeric": "numbers and short codes"}
#: What happens to a name as a sender, by `senders.places.Standing`.
NAME_PLACES: Mapping[str, str] = {
    "free": "Shown as it is",
    "register": "Shown once it is registered with the networks",
    "replaced": "Replaced by a number or another name",
    "refused": "Not sent",
}
#: What is wrong with a form that sends one message: field and issue.
SEND_FORM: Mapping[str, str] = {
    "form.required": "This form does not come from this site. Reload the page.",
    "to.required": "Enter a phone number or a contact.",
    "to.ambiguous": "Choose whom you mean.",
    "to.pattern": "This is not a phone number, and no contact has this name.",
    "message.required": "Write a text.",
    "message.long": "The text is too long.",
    "message.length": "A text can have at most 1,600 characters.",
    "message.too_many_segments": "The text needs more than ten segments. They hold 1,530 characters of the GSM "
    "alphabet, or 670 if any is not in it.",
    "sender.unknown": "Choose one of those that are offered.",
    "day.required": "Enter both a day and a time.",
    "day.format": "Enter a day and a time, such as 2026-05-12 and 10:30.",
    "day.skipped": "There is no such time on that day: the clocks go forward past it.",
    "day.range": "The time must be between a minute ago and 365 days ahead.",
    "validity.range": "Choose one of those that are offered.",
    "guarantee.enum": "Choose one of those that are offered.",
    "reference.length": "A reference can have at most 255 characters.",
    "template.unknown": "Choose one of those that are offered.",
    "number.unknown": "Choose one of those that are offered.",
    "p.required": "Enter a value.",
    "p.format": "WhatsApp refuses this value. It must not contain line breaks, tabs or more than four spaces in a row. "
    "Headings are limited to 60 characters, addresses to 2,000 and codes to 15, and codes must not contain links or "
    "emojis.",
    "template.format": "With these values, a part of the template is longer than WhatsApp allows.",
    "code.ended": "This code is no longer valid. Ask for a new one.",
    "code.wrong": "This is not the code that was sent.",
    "own.pattern": "This is not a phone number with a country code, such as +258841234567.",
}
#: What is wrong with a field of the form for a saved text.
SAVED_TEXT_FORM: Mapping[str, str] = {
    "name": "A name must have 1 to 100 characters, all of them visible.",
    "body": "A text must have 1 to 1,600 characters.",
}
#: Labels of links shown with a refused send, by error code.
SEND_WAYS: Mapping[str, str] = {
    "quota_exceeded": "See the usage",
    "sender_id_not_approved": "See the sender IDs",
    "sender_id_not_allowed": "See the sender IDs",
    "whatsapp_window_closed": "Send a template",
}
#: What the last four digits of a number choose in test mode.
OUTCOMES: Mapping[str, str] = {
    "0000": "Delivered",
    "0001": "Undelivered",
    "0002": "Failed",
    "0003": "Expired",
    "0004": "No receipt arrives",
    "0005": "The receipt arrives late, after 60 s",
    "0006": "The receipt arrives twice",
    "0007": "The receipt arrives early, before the answer",
}
#: The same of a WhatsApp message.
WHATSAPP_OUTCOMES: Mapping[str, str] = {
    "0000": "Delivered and read",
    "0001": "Failed: the recipient cannot be reached",
    "0002": "Failed for an unknown reason",
    "0003": "Sent, then expired",
    "0004": "Sent, and nothing more is heard",
    "0005": "Read late, after 60 s",
    "0006": "Every status arrives twice",
    "0007": "A status arrives early, before the answer",
}
#: States of a webhook endpoint, and what may be wrong with its form.
ENDPOINT_STATES: Mapping[str, str] = {
    "well": "Working",
    "failing": "Failing",
    "new": "Not tried yet",
    "paused": "Paused",
    "disabled": "Disabled",
}
ENDPOINT_FORM: Mapping[str, str] = {
    "subscribed_events": "Choose at least one event.",
    "description": "A description can have at most 200 characters.",
}
#: How far back to resend, and the state of that.
SINCE: Mapping[str, str] = {
    "1h": "The last hour",
    "24h": "The last 24 hours",
    "3d": "The last 3 days",
    "7d": "The last 7 days",
    "30d": "The last 30 days",
    "custom": "Choose times",
}
REPLAYS: Mapping[str, str] = {"running": "Running", "completed": "Completed", "canceled": "Canceled"}
#: Results of attempts to deliver an event.
RESULTS: Mapping[str, str] = {
    "delivered": "Delivered",
    "refused": "Refused",
    "gone": "Gone",
    "blocked": "Blocked",
    "busy": "Busy",
    "dns": "Name not found",
    "connect": "No connection",
    "tls": "No secure connection",
    "timeout": "No answer in time",
    "closed": "Connection closed",
    "protocol": "Not HTTP",
    "secret": "Not signed",
}
#: Texts for people who typed an invalid address, by the rule's message.
URL_PROBLEMS: Mapping[str, str] = {
    "the URL has more than 2048 characters": "An address can have at most 2,048 characters.",
    "the URL must be ASCII: write the host in its xn-- form and percent-encode the path": (
        "Write the host in its xn-- form, and other letters percent-encoded."
    ),
    "the URL contains a character that must be percent-encoded": (
        "The address contains a character that must be percent-encoded, such as a space."
    ),
    "it is not a valid URL, such as https://example.com/hooks": (
        "This is not an address such as https://example.com/hooks."
    ),
    "the URL must start with https://": "The address must start with https://.",
    "the URL must not contain a user name or password": "The address must not contain a user name or password.",
    "the port must be between 1 and 65535": "The port must be between 1 and 65535.",
    "the address is not public": "This address is not public: private, local and reserved networks are refused.",
    "the host must not have a zone id": "The host must not have a zone id.",
    "the host is not an IPv6 address": "The host is not an IPv6 address.",
    "an IPv4 address must be four decimal numbers": "An IPv4 address must be four decimal numbers.",
    "the host is not an IPv4 address": "The host is not an IPv4 address.",
    "the host is not a valid name": "The host is not a valid name.",
}
#: Groups of events, by the part of their kind before the dot.
EVENT_GROUPS: Mapping[str, str] = {
    "message": "Messages",
    "contact": "Contacts",
    "campaign": "Campaigns",
    "sender_id": "Sender IDs",
    "whatsapp": "WhatsApp",
    "notice": "Notifications",
    "webhook": "Tests",
}
#: What people send by WhatsApp other than text.
CONTENTS: Mapping[str, str] = {
    "image": "Picture",
    "video": "Video",
    "audio": "Audio",
    "document": "Document",
    "sticker": "Sticker",
    "location": "Place",
    "contacts": "Contact",
    "order": "Order",
    "reaction": "Reaction",
    "reaction_removed": "Reaction removed",
    "system": "Notice",
    "interactive": "Choice",
    "button": "Choice",
    "template": "Template",
    "edit": "Changed message",
    "revoke": "Message deleted",
    "request_welcome": "Opened the chat",
    "blank": "No text",
    "unsupported": "Something that cannot be shown",
    "unknown": "Something that cannot be shown",
}
#: Parts of a template that values fill.
SLOTS: Mapping[str, str] = {"header": "Header", "body": "Text", "button": "End of the URL", "code": "Code"}
CATEGORIES: Mapping[str, str] = {
    "utility": "Utility",
    "authentication": "One-time code",
    "marketing": "Marketing",
}
#: WhatsApp's quality ratings of a number or template, by how people react to its messages.
QUALITIES: Mapping[str, str] = {
    "green": "good",
    "yellow": "medium: people block or report it",
    "red": "low: many people block or report it",
    "unknown": "not rated yet",
}
TEMPLATE_STATUSES: Mapping[str, str] = {
    "approved": "Approved",
    "pending": "Under review",
    "rejected": languages.TEMPLATE + "Rejected",
    "paused": "Paused",
    "disabled": "Disabled",
    "in_appeal": "In appeal",
}
#: What each template status means for sending.
TEMPLATE_MEANINGS: Mapping[str, str] = {
    "approved": "WhatsApp has approved it: it can be sent.",
    "pending": "WhatsApp is reviewing it, usually for minutes, at most for a day or two.",
    "rejected": "WhatsApp has rejected it: it cannot be sent as it is.",
    "paused": "WhatsApp has paused it, since people blocked or reported it. What waits for it is sent afterwards.",
    "disabled": "WhatsApp has disabled it for good. Make another one.",
    "in_appeal": "Its rejection is being reviewed.",
}
#: Kinds of outgoing work.
WORK: Mapping[str, str] = {"sms": "SMS", "whatsapp": "WhatsApp", "webhook": "Webhooks"}
#: organizations.state
ORGANIZATION_STATES: Mapping[str, str] = {
    "active": "Active",
    "trial": "Trial",
    "past_due": "Past due",
    "suspended": "Suspended",
    "closed": "Closed",
}
#: The most frequent reasons for rejecting a sender ID, as shown to its organization.
REJECTED_SENDER: Mapping[str, str] = {
    "proof": "Nothing proves that this name is yours.",
    "imitates": "This name could be mistaken for another company's.",
    "generic": "This name does not say who the sender is: networks do not carry such names.",
    "content": "What would be sent from it is not allowed.",
}
#: Why a template was rejected, and what to do.
REJECTIONS: Mapping[str, str] = {
    "abusive_content": "It reads as abusive or threatening. Say the same without pressure.",
    "incorrect_category": "It is of another category than it says. Take out what promotes something, or change it.",
    "invalid_format": "Its variables are not well formed: number them in order, and neither begin nor end with one.",
    "promotional": "It promotes something, which this category does not allow. Take that out, or make it marketing.",
    "scam": "It looks like fraud. Say who writes and why, and ask for no secrets.",
    "tag_content_mismatch": "Its language or category does not fit the text. Correct whichever is wrong.",
    "other": "WhatsApp gave no reason that can be shown. The operator may know more.",
}
CONNECTIONS: Mapping[str, str] = {
    "connected": "Connected",
    "pending": "Being set up",
    "disconnected": "Not connected",
    "restricted": "Restricted",
    "banned": "Banned",
    "paused": "Paused by the operator",
    "unknown": "Unknown",
}
CREDENTIALS: Mapping[str, str] = {
    "ok": "works",
    "expiring": "expires soon: the operator has to renew it",
    "missing_scope": "lacks a permission: the operator has to renew it",
    "invalid": "does not work: the operator has to renew it",
    "unknown": "not checked yet",
}
#: Keywords that people send to opt out, to opt in, and to get help.
KEYWORDS: Mapping[str, str] = {"stop": "STOP", "start": "START", "help": "HELP"}
#: What a network reports about a message, by a name of `suppliers.contract.ReceiptState`.
REPORTS: Mapping[str, str] = {
    "delivered": "it arrived",
    "expired": "it could not be delivered in time",
    "undelivered": "it could not be delivered",
    "rejected": "it was rejected",
    "failed": "it failed",
    "pending": "it is on its way",
    "unknown": "its outcome is not known",
}
STATUSES: Mapping[str, str] = {
    "accepted": "Accepted",
    "queued": "Queued",
    "received": "Received",
    "sending": "Sending",
    "sent": "Sent",
    "delivered": "Delivered",
    "read": "Read",
    "undelivered": "Undelivered",
    "failed": "Failed",
    "expired": "Expired",
    "rejected": "Rejected",
    "canceled": "Canceled",
    "unknown": "Unknown",
    "active": "Active",
    "suspended": "Suspended",
    "revoked": "Revoked",
    "pending": "Pending",
    "approved": "Approved",
}
#: Statuses of sender IDs.
SENDER_STATUSES: Mapping[str, str] = {
    "pending": "Pending",
    "approved": "Approved",
    "rejected": languages.SENDER + "Rejected",
    "suspended": languages.SENDER + "Suspended",
}
#: Statuses of campaigns.
CAMPAIGN_STATUSES: Mapping[str, str] = {
    "scheduled": "Scheduled",
    "staging": "Gathering",
    "running": "Running",
    "paused": "Paused",
    "completed": "Completed",
    "canceled": "Canceled",
    "failed": "Failed",
}
