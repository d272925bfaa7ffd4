"""Every text that a page can show: in templates, in screens, and in rules whose refusals a page repeats."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator
from pathlib import Path

from jinja2.ext import babel_extract

from heliograph.accounts.api_keys.scopes import SCOPES
from heliograph.audit.actions import ACTIONS
from heliograph.base.errors import MISSING as MISSING_ANYWHERE
from heliograph.base.network import smtp
from heliograph.console import places as console_places
from heliograph.console import typed
from heliograph.console.administration import installation
from heliograph.console.approvals import senders
from heliograph.console.credentials import keying
from heliograph.console.messages import wording
from heliograph.console.money import tariffs, wallets
from heliograph.console.organizations import configuring
from heliograph.console.routing import descriptions, ruling
from heliograph.console.routing import editing as routing
from heliograph.console.suppliers import charts, wizard
from heliograph.console.whatsapp import connecting
from heliograph.console.whatsapp import editing as account
from heliograph.dashboard import listing, places
from heliograph.dashboard.audience import words as audience
from heliograph.guard.windows import RULES as SUSPICIONS
from heliograph.overview.exports import jobs
from heliograph.pages import words
from heliograph.pages.languages import COUNT
from heliograph.pages.lists import field_names
from heliograph.pages.pieces.places import KEYS
from heliograph.pages.pieces.reply_form import REPLY_LANGUAGES
from heliograph.people import users
from heliograph.people.passkeys import keeping
from heliograph.senders.book import STATES
from heliograph.sms.lookups import forms as lookup_forms
from heliograph.sms.management import changing, drafts, forms, sections
from heliograph.suppliers import kinds
from heliograph.suppliers.lookups import kinds as lookups
from heliograph.suppliers.whatsapp_cloud import errors
from heliograph.webhooks.samples import SUMMARIES
from tests.house.project import ROOT

PACKAGE = ROOT / "heliograph"
#: Modules whose refusals pages show verbatim.
RULES = ("people", "pages", "dashboard", "console")
SHOWN_RULES = {
    "accounts/api_keys/lifecycle.py": {"KeyNotActive", "KeyReplaced", "TooManyActiveKeys"},
    "accounts/api_keys/scopes.py": {"ScopeRequired", "LiveKeyRequired"},
    "accounts/requests.py": {"IdempotencyConflict", "IdempotencyInProgress"},
    "accounts/organizations.py": {"OrganizationSuspended"},
    "sms/accepting/sender_ids.py": {"SenderIdAlreadyExists", "SenderIdNotApproved", "TooManyPending"},
    "campaigns/approval/rule.py": {"CampaignApprovalRequired"},
    "campaigns/approval/approving.py": {"CampaignApprovalByAnother"},
    "campaigns/plan.py": {"CampaignAudienceEmpty", "CampaignNotCancelable", "CampaignNotPausable"},
    "contacts/imports/drafts.py": {"ImportMoved"},
    "contacts/tags.py": {"TooManyTagChanges"},
    "contacts/records.py": {"ContactAlreadyExists"},
    "consent/optouts.py": {"NotYoursToLift"},
    "webhooks/endpoints.py": {"TooManyEndpoints", "EndpointDisabled", "EndpointPaused"},
    "webhooks/replays.py": {"ReplayRunning"},
    "overview/exports/jobs.py": {"TooManyExports"},
    "sms/messages.py": {"MessageNotCancelable"},
    "sms/by_hand/saved_texts.py": {"SavedTextExists", "TooManySavedTexts"},
    "sms/by_hand/own_numbers.py": {"TooManyCodes"},
    "whatsapp/accepting/accept.py": {"WindowClosed"},
    "whatsapp/mirror/numbers.py": {"PhoneNumberUnavailable"},
    "whatsapp/mirror/templates.py": {
        "TemplateNotFound",
        "TemplateParameterMismatch",
        "TemplateNotApproved",
        "TemplateNotSendable",
    },
    "base/errors.py": {"Invalid", "NotFound", "Unavailable"},
    "api/shapes/refusals.py": {"RateLimited"},
}
#: Modules whose "There is no such ..." no page shows: of other doors, or only of pages without forms, which have a text
#: of their own for it.
ELSEWHERE = (
    *("api", "cli", "accounts/organizations.py", "sms/callbacks/intake.py", "whatsapp/callbacks/intake.py"),
    *("overview/requests.py", "requests/reading.py"),
)


def texts() -> set[str]:
    """In English, as they are looked up; of a plural its singular."""
    found: set[str | None] = {*sentences()}
    for folder in RULES:
        for path in (PACKAGE / folder).rglob("*.html"):
            found |= set(_of_template(path))
        for path in (PACKAGE / folder).rglob("*.py"):
            found |= set(_of_module(path))
    for name, shown in SHOWN_RULES.items():
        found |= set(_refusals(ast.parse((PACKAGE / name).read_text()), shown))
    found |= {*MISSING_ANYWHERE.values()}
    for path in PACKAGE.rglob("*.py"):
        if not str(path.relative_to(PACKAGE)).startswith(ELSEWHERE) and "NotFound(" in (source := path.read_text()):
            found |= set(_missing(ast.parse(source)))
    for name, table in (*vars(words).items(), *vars(audience).items()):
        if isinstance(table, str) and name.isupper():
            found.add(table)
        elif name.isupper():
            found |= set(table.values()) if isinstance(table, dict) else {text for row in table for text in row[1:]}
    found |= {*field_names.FIELDS.values(), *field_names.OF_ACTION.values()}
    found |= {text for table in field_names.CODES.values() for text in table.values()} - {"CSV", "JSON"}
    intervening = [*(PACKAGE / "sms/intervening").glob("*.py"), PACKAGE / "whatsapp/intervening.py"]
    intervening += [PACKAGE / "whatsapp/mirror/apps.py", PACKAGE / "whatsapp/mirror/accounts.py"]
    intervening.append(PACKAGE / "audit/reasons.py")
    for path in [*(PACKAGE / "sms/management").glob("*.py"), *intervening, PACKAGE / "overview/installation/notes.py"]:
        found |= set(_of_module(path))
    for kind in kinds.SETTINGS:
        found |= {one.meaning for one in forms.fields(kind)} | {*changing.secrets(kind).values()}
    found.add(kinds.HTTP[kinds.GENERIC].title)  # the others' are names
    found |= {*wizard.QUESTIONS.values(), *wizard.PROBED.values()} | {label for _, label in wizard.STEPS}
    found |= {*sections.HEADINGS, *sections.NOTES.values()} | {
        label for _, label, _ in (*charts.ANSWERS, *charts.REPORTS)
    }
    found |= {*charts.HAPPENED.values()}
    found |= {lookup_forms.REQUIRED, jobs.FULL}
    for kind in lookups.KINDS:
        found |= {one.meaning for one in lookup_forms.fields(kind)} | {*lookups.KINDS[kind].secrets.values()}
    found |= {*wording.STEPS.values(), *wording.DETAILS.values(), *wording.STATES.values()}
    found |= {
        *descriptions.FIELDS.values(),
        *descriptions.STATES.values(),
        *routing.WRONG.values(),
        *account.WRONG.values(),
    }
    found |= {*REPLY_LANGUAGES.values(), *configuring.HOW.values(), *configuring.WRONG.values()}
    found |= {*typed.WRONG.values(), *wallets.WRONG.values(), *installation.WRONG.values()}
    found |= {*tariffs.WRONG_DRAFT.values(), *connecting.WRONG.values()}
    found |= {*keying.WRONG.values(), *ruling.WRONG.values()}
    for names in (users, keeping, drafts, tariffs):
        found |= {*names.WRONG_NAME.values()}
    found |= {*senders.UNDONE.values()}
    found |= {*SCOPES.values(), *ACTIONS.values(), *SUMMARIES.values()}
    found |= {one.label for one in (*places.ACTIONS, *console_places.ACTIONS)}
    found |= {column.label for offered in listing.COLUMNS.values() for column in offered}
    found |= {what for _, what in (*KEYS, *places.KEYS, *console_places.KEYS)}
    for heading, group in places.GROUPS:
        found |= {heading, *(place.label for place in group)}
    for heading, rail in console_places.GROUPS:
        found |= {heading, *(one.label for one in rail)}
    return {text for text in found if text}


@functools.cache
def sentences() -> frozenset[str]:
    """Texts for operators anywhere (`base.sentences`), and what is stored as a word and shown as a sentence."""
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text()
        if "base.sentences import" in source:
            found |= set(_said(ast.parse(source)))
    found |= {one.title for one in _faults()}
    found |= {*smtp.REASONS.values(), *SUSPICIONS.values(), *STATES}
    return frozenset(found | {"credential", "paused", "draining", "removed"})


def _said(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "said" and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant):
                yield first.value
            else:
                raise AssertionError(f"line {node.lineno}: a sentence that is told stands where it is said")


def _faults() -> Iterator[errors.Fault]:
    for value in vars(errors).values():
        for one in value.values() if isinstance(value, dict) else [value]:
            if isinstance(one, errors.Fault):
                yield one


def _of_template(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        looked_up = ("_", "gettext", "ngettext", "count_label")
        for _, function, message, _ in babel_extract(file, looked_up, (), {"trim_blocks": "true"}):
            if function == "count_label":
                if isinstance(message, str):
                    yield COUNT + message
            else:
                yield message[0] if isinstance(message, tuple) else message


def _of_module(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    yield from _refusals(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "Invalid":
            for given in node.args:
                if isinstance(given, ast.Tuple) and isinstance(given.elts[-1], ast.Constant):
                    yield given.elts[-1].value
        elif name == "add" and len(node.args) == 3 and isinstance(message := node.args[-1], ast.Constant):
            yield message.value  # of `Problems`, which gather what an Invalid names
        elif node.args and isinstance(first := node.args[0], ast.Constant) and isinstance(first.value, str):
            is_refusal = name[:1].isupper() and " " in first.value and name not in ("Role", "Markup")
            if is_refusal or name in ("text", "count"):
                yield first.value
            elif name == "count_label":
                yield COUNT + first.value


def _missing(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "NotFound" and node.args:
            # What names something, such as a supplier that a command looks for, is for commands.
            yield from (one.value for one in _either(node.args[0]) if isinstance(one, ast.Constant))


def _either(said: ast.expr) -> Iterator[ast.expr]:
    """The texts that an expression chooses from."""
    if isinstance(said, ast.IfExp):
        yield from (said.body, said.orelse)
    else:
        yield said


def _refusals(tree: ast.Module, only: set[str] | None = None) -> Iterator[str]:
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or (only is not None and node.name not in only):
            continue
        if any(getattr(base, "id", "") == "Refusal" for base in node.bases):
            yield inspect.cleandoc(ast.get_docstring(node) or "").split("\n\n")[0]
