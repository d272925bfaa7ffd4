"""The explanations of codes: every code of the product has an entry in both languages, and none for customers mentions
a supplier; and phrases that no page and no document uses, because a native engineer would not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from heliograph.api.document import error_pages
from heliograph.campaigns import plan, record, standstill
from heliograph.campaigns.approval import rule
from heliograph.campaigns.channels import whatsapp as whatsapp_channel
from heliograph.http import answers
from heliograph.pages.languages import catalogue
from heliograph.sms import messages as sms_messages
from heliograph.sms import status
from heliograph.sms.dispatch import routing
from heliograph.sms.status import STATUSES
from heliograph.suppliers.contract import Verdict
from heliograph.suppliers.whatsapp_cloud.errors import FAILURES as CLOUD_FAILURES
from heliograph.webhooks import endpoints
from heliograph.webhooks.delivery import attempts
from heliograph.whatsapp.messages import SHOWN_STATUSES
from heliograph.why import words
from heliograph.why.words import Kind
from tests.house.project import DOCS, ROOT
from tests.house.test_documents import anchors

#: Who carries a message, and how the engine works, is not for customers.
HIDDEN = re.compile(
    r"supplier|provider|carrier|fornecedor|\bsmpp\b|\bsmsc\b|\bmeta\b|\bqueue\b|\bworkers?\b|\bfila\b|\breceipt|\brecibo"
    r"|PDU|HELIOGRAPH_",
    re.IGNORECASE,
)
#: What was written again and again, and is not idiomatic: "match these filters", "in this period", "is stalled",
#: "again", "no longer", "is not a", "valid for", "attention", "earlier", "separated by", "processed", "checked again",
#: "not in any known range", "give a reason", "enter a number", "can have at most", "the operator of this service",
#: "deferred again and again", "is failing", "expires".
FOREIGN = re.compile(
    r"\bfits? (all of )?these filters|\bin this time\b|\bstands? still|\banew\b|\bany more\b(?! than)"
    r"|\b(This|It) is no (?!longer)|\bgood for (an?|one|two|three) |somebody's eye|\bof before\b"
    r"|(?<!told )\bapart by\b|\bworked through\b|\blooked at again\b|\bsecret of now\b|\bstands in the audit log"
    r"|\bin no known range|\bSay why, |\bWrite an? (number|amount|day|time|month|country|phone)"
    r"|\b[Aa]n? \w+ has (at most|1 to) [\d,]+ characters"
    r"|\b[Ww]hoever runs this service|\bput back again and again|\b(endpoint|check)s? fails?[.]"
    r"|\bkeys? ends? (soon|within)"
)
#: Portuguese spelling from before the agreement of 1990, which pages and explanations follow.
FORMER = re.compile(r"activ|redireccion|direcç|selecç|colecç|projecç|efectu|factura|actual", re.IGNORECASE)
#: Errors that no customer's program gets: those of the command line, and of Meta's callbacks.
OF_OPERATORS = {
    "rates_invalid",
    "supplier_already_exists",
    "whatsapp_account_already_exists",
    "callback_not_genuine",
}
EVERY = [(kind, code, one) for kind, listed in words.entries().items() for code, one in listed.items()]
NAMES = [f"{kind}.{code}" for kind, code, _ in EVERY]


def failures_in_source() -> set[str]:
    """Failure codes that the SMS channel gives a message, according to its source."""
    text = "\n".join(path.read_text() for path in sorted((ROOT / "heliograph" / "sms").rglob("*.py")))
    written = set(re.findall(r'\("?[*\w]+"?, (?:"\w+", )?(?:due|message|self)?\.?at, "(\w+)"', text))
    written |= {*get_args(routing.Unsendable), *status.BY_RECEIPT.values(), status.NO_RECEIPT, status.OUTCOME_UNKNOWN}
    return written - {"delivered"}


def known() -> dict[str, set[str]]:
    stops = re.findall(r"Stop\((\w+)", Path(whatsapp_channel.__file__).read_text())
    campaign = {
        plan.QUOTA,
        plan.SPENT,
        plan.SUSPENDED,
        plan.SENDER,
        plan.ERASED,
        plan.BY_REQUEST,
        rule.REASON,
        record.WAITING,
        whatsapp_channel.FUNDS,
    }
    campaign |= set(standstill.REASONS)
    campaign |= {getattr(whatsapp_channel, name) for name in stops if name.isupper()}
    return {
        "status": {*STATUSES, sms_messages.SENDING, *SHOWN_STATUSES},
        "whatsapp_failure": {*CLOUD_FAILURES, "opted_out", "template_unavailable", "phone_number_unavailable"},
        "campaign": campaign,
        "webhook": {
            attempts.DELIVERED,
            attempts.REFUSED,
            attempts.GONE,
            attempts.UNSIGNED,
            *get_args(answers.FailureKind),
        },
        "endpoint": {endpoints.REQUESTED, endpoints.GONE, endpoints.FAILING, endpoints.ENDED},
        "attempt": {*Verdict},
        "error": {one.code for one in error_pages.errors()} - OF_OPERATORS,
    }


@pytest.mark.parametrize("kind", known())
def test_every_code_has_an_entry_and_every_entry_a_code(kind: str) -> None:
    assert words.entries()[kind].keys() == known()[kind]


def test_every_failure_that_a_message_may_get_has_an_entry() -> None:
    assert words.entries()["sms_failure"].keys() == failures_in_source()


def test_the_kinds_are_those_that_can_be_asked_for() -> None:
    assert words.entries().keys() == set(get_args(Kind))


@pytest.mark.parametrize(("kind", "code", "one"), EVERY, ids=NAMES)
def test_an_entry_is_whole_and_says_the_same_in_both_languages(kind: str, code: str, one: words.Why) -> None:
    for language in words.LANGUAGES:
        said = one.words(language)
        for name in said.__struct_fields__:
            text = getattr(said, name)
            assert text == text.strip()
            assert text.endswith("."), f"{language}.{name} is no sentence"
            assert language != "pt" or not FORMER.search(text)
            assert len(text) <= 140
    for name in one.en.__struct_fields__:
        if "2xx" not in getattr(one.en, name):  # the same in any language
            assert getattr(one.en, name) != getattr(one.pt, name)


@pytest.mark.parametrize(("kind", "code", "one"), EVERY, ids=NAMES)
def test_what_a_customer_reads_names_no_supplier(kind: str, code: str, one: words.Why) -> None:
    for said in (one.en, one.pt):
        for text in (said.customer, said.cause, said.remedy):
            assert HIDDEN.search(text) is None, text


@pytest.mark.parametrize(("kind", "code", "one"), EVERY, ids=NAMES)
def test_where_to_read_on_is_there(kind: str, code: str, one: words.Why) -> None:
    file, _, anchor = one.link.partition("#")
    assert (DOCS / file).is_file()
    assert not anchor or anchor in anchors(DOCS / file)


@pytest.mark.parametrize("code", ["endpoint.requested", "endpoint.gone", "endpoint.failing", "webhook.gone"])
def test_a_disabled_endpoint_is_to_be_enabled_rather_than_replaced(code: str) -> None:
    """It keeps its secret, and recovers what it missed."""
    kind, _, name = code.partition(".")
    one = words.entries()[kind][name]
    assert re.search("nable (it|the endpoint) again", one.en.remedy)
    assert re.search("eative(-o| o endpoint)", one.pt.remedy)


@pytest.mark.parametrize("language", words.LANGUAGES)
def test_what_becomes_of_a_status_of_both_channels_is_said_for_each(language: str) -> None:
    both = {one.remedy for code in set(STATUSES) & set(SHOWN_STATUSES) for one in [_status(code).words(language)]}
    ends = [remedy for remedy in both if re.search(r"becomes|passa a ", remedy)]
    assert ends
    assert [remedy for remedy in ends if not ("SMS" in remedy and "WhatsApp" in remedy)] == []


def _status(code: str) -> words.Why:
    found = words.why("status", code)
    assert found is not None
    return found


def test_a_code_that_is_none_has_no_words() -> None:
    assert words.why("status", "nonsense") is None
    found = words.why("status", "delivered")
    assert found is not None
    assert found.words("fr") == found.en


def test_pages_and_documents_are_in_idiomatic_english() -> None:
    assert [text for text in catalogue("pt") if FOREIGN.search(text)] == []
    for path in [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]:
        found = [line for line in path.read_text().splitlines() if FOREIGN.search(line)]
        assert found == [], path.name
    # The check can fail.
    assert FOREIGN.search("No message fits these filters.")
    assert not FOREIGN.search("It is no longer active. Keys are told apart by name.")
