"""The meaning of Graph error codes, compared with an independent library's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pywa import errors as pywa

from heliograph.pages import languages
from heliograph.suppliers.whatsapp_cloud.errors import FAILURES, FAULTS, UNCOUNTED, Kind, Scope, classify, meaning

AUTH, ACCOUNT, RATE, RETRY = Kind.AUTH, Kind.ACCOUNT, Kind.RATE, Kind.RETRY
REQUEST, RECIPIENT, TEMPLATE = Kind.REQUEST, Kind.RECIPIENT, Kind.TEMPLATE
ROWS = [
    # code, class, further tries, what it stops, what the customer sees, alarm
    (0, AUTH, None, "credential", "unknown", True),
    (1, RETRY, 3, "message", "unknown", False),
    (2, RETRY, None, "message", "unknown", False),
    (3, AUTH, None, "credential", "unknown", True),
    (4, RATE, None, "credential", "throttled", False),
    (10, AUTH, None, "credential", "unknown", True),
    (17, RATE, None, "credential", "throttled", False),
    (32, RATE, None, "credential", "throttled", False),
    (33, ACCOUNT, None, "number", "unknown", True),
    (100, REQUEST, 0, "message", "unknown", True),
    (102, AUTH, None, "credential", "unknown", True),
    (190, AUTH, None, "credential", "unknown", True),
    (200, AUTH, None, "credential", "unknown", True),
    (299, AUTH, None, "credential", "unknown", True),
    (341, RATE, None, "credential", "throttled", False),
    (368, ACCOUNT, None, "account", "unknown", True),
    (613, RATE, None, "credential", "throttled", False),
    (2500, ACCOUNT, None, "account", "unknown", True),
    (80007, RATE, None, "account", "throttled", False),
    (80008, RATE, None, "account", "throttled", False),
    (130403, RECIPIENT, 0, "message", "recipient_unreachable", False),
    (130429, RATE, None, "number", "throttled", False),
    (130472, RECIPIENT, 0, "message", "marketing_limit", False),
    (130497, RECIPIENT, 0, "country", "recipient_unreachable", True),
    (131000, RETRY, 3, "message", "unknown", False),
    (131005, AUTH, None, "credential", "unknown", True),
    (131008, REQUEST, 0, "message", "unknown", True),
    (131009, REQUEST, 0, "message", "unknown", True),
    (131016, RETRY, None, "message", "unknown", False),
    (131021, REQUEST, 0, "message", "recipient_unreachable", False),
    (131026, RECIPIENT, 0, "message", "recipient_unreachable", False),
    (131030, REQUEST, 0, "message", "recipient_unreachable", True),
    (131031, ACCOUNT, None, "account", "unknown", True),
    (131037, ACCOUNT, None, "number", "unknown", True),
    (131042, ACCOUNT, None, "account", "payment", True),
    (131043, RECIPIENT, 0, "message", "expired", False),
    (131045, ACCOUNT, None, "number", "unknown", True),
    (131047, Kind.WINDOW, 0, "message", "window_closed", False),
    (131048, RATE, None, "number", "spam_limited", True),
    (131049, RECIPIENT, 0, "user", "marketing_limit", False),
    (131050, RECIPIENT, 0, "message", "marketing_limit", False),
    (131051, REQUEST, 0, "message", "unknown", True),
    (131052, Kind.MEDIA, 2, "message", "media_error", False),
    (131053, Kind.MEDIA, 2, "message", "media_error", False),
    (131055, REQUEST, 0, "message", "unknown", True),
    (131056, Kind.PAIR, None, "user", "throttled", False),
    (131057, RETRY, None, "number", "unknown", False),
    (131062, REQUEST, 0, "message", "recipient_unreachable", True),
    (131063, TEMPLATE, 0, "template", "unknown", True),
    (131064, ACCOUNT, None, "account", "unknown", True),
    (132000, TEMPLATE, 0, "template", "unknown", False),
    (132001, TEMPLATE, 3, "template", "unknown", False),
    (132005, REQUEST, 0, "message", "unknown", False),
    (132007, TEMPLATE, 0, "template", "unknown", True),
    (132008, TEMPLATE, 0, "template", "unknown", False),
    (132012, TEMPLATE, 0, "template", "unknown", False),
    (132015, TEMPLATE, None, "template", "unknown", False),
    (132016, TEMPLATE, 0, "template", "unknown", True),
    (132018, TEMPLATE, 0, "template", "unknown", False),
    (132068, TEMPLATE, 0, "template", "unknown", True),
    (132069, RATE, None, "template", "throttled", False),
    (133000, RETRY, None, "message", "unknown", False),
    (133004, RETRY, None, "message", "unknown", False),
    (133005, ACCOUNT, None, "number", "unknown", True),
    (133006, ACCOUNT, None, "number", "unknown", True),
    (133008, ACCOUNT, None, "number", "unknown", True),
    (133009, ACCOUNT, None, "number", "unknown", True),
    (133010, ACCOUNT, None, "number", "unknown", True),
    (133015, RETRY, None, "number", "unknown", False),
    (133016, ACCOUNT, None, "number", "unknown", True),
    (134011, ACCOUNT, None, "account", "unknown", True),
    (135000, REQUEST, 0, "message", "unknown", True),
    (137000, RECIPIENT, 0, "message", "recipient_unreachable", False),
]

#: pywa's families, as exception classes, and the classes here that agree with one.
FAMILIES: dict[type[Exception], set[Kind]] = {
    pywa.AuthorizationError: {AUTH},
    # pywa treats registration and misclassified templates as limits; here both stop the number or the account.
    pywa.ThrottlingError: {RATE, Kind.PAIR, ACCOUNT},
    pywa.IntegrityError: {ACCOUNT, RECIPIENT},
    pywa.SendMessageError: set(Kind) - {AUTH},
}
SINGLE: dict[type[Exception], Kind] = {
    pywa.ReEngagementMessage: Kind.WINDOW,
    pywa.MessageUndeliverable: RECIPIENT,
    pywa.TooManyMessages: Kind.PAIR,
    pywa.RateLimitHit: RATE,
    pywa.SpamRateLimitHit: RATE,
    pywa.ToManyAPICalls: RATE,
    pywa.RateLimitIssues: RATE,
    pywa.BusinessPaymentIssue: ACCOUNT,
    pywa.AccountLocked: ACCOUNT,
    pywa.TemporarilyBlocked: ACCOUNT,
    pywa.ExpiredAccessToken: AUTH,
    pywa.TemplatePaused: TEMPLATE,
    pywa.TemplateDisabled: TEMPLATE,
    pywa.TemplateNotExists: TEMPLATE,
    pywa.TemplateParamCountMismatch: TEMPLATE,
    pywa.TemplateParamFormatMismatch: TEMPLATE,
    pywa.MediaDownloadError: Kind.MEDIA,
    pywa.MediaUploadError: Kind.MEDIA,
    pywa.InvalidParameter: REQUEST,
    pywa.MissingRequiredParameter: REQUEST,
    pywa.ServiceUnavailable: RETRY,
    pywa.AccountInMaintenanceMode: RETRY,
    pywa.UserStoppedMarketingMessages: RECIPIENT,
    pywa.RecipientIdentityKeyMismatch: RECIPIENT,
    pywa.FlowThrottled: RATE,
    # Graph's code for any limit; pywa knows it from voice calls.
    pywa.FetchCallPermissionLimitHit: RATE,
    # A failed send to pywa; it is the credential that is denied.
    pywa.AccessDenied: AUTH,
}


@pytest.mark.parametrize(("code", "kind", "tries", "scope", "failure", "alarm"), ROWS, ids=[str(r[0]) for r in ROWS])
def test_codes(code: int, kind: Kind, tries: int | None, scope: str, failure: str, alarm: bool) -> None:
    fault = classify(code)
    assert (fault.code, fault.kind, fault.tries, fault.scope) == (code, kind, tries, scope)
    assert (fault.failure, fault.alarm, fault.unsure) == (failure, alarm, False)
    assert fault.slow is (code == 130429)


def test_every_row_is_judged_here_and_holds_together() -> None:
    assert not FAULTS.keys() - {row[0] for row in ROWS}
    for fault in FAULTS.values():
        assert fault.failure in FAILURES
        assert fault.title
        if fault.waits or fault.scope is not Scope.MESSAGE:
            assert fault.hold > 0 or not fault.waits
        if fault.kind in (AUTH, ACCOUNT):
            assert fault.alarm


@pytest.mark.parametrize("code", [code for code, *_ in ROWS])
def test_a_foreign_library_puts_it_into_the_same_family(code: int) -> None:
    theirs = type(pywa.WhatsAppError.from_dict({"code": code, "message": "m"}))
    if theirs is pywa.WhatsAppError:
        return
    kind = classify(code).kind
    if theirs in SINGLE:
        assert kind is SINGLE[theirs]
    else:
        assert any(issubclass(theirs, family) and kind in kinds for family, kinds in FAMILIES.items())


def test_most_codes_are_known_to_that_library() -> None:
    known = [
        code
        for code, *_ in ROWS
        if type(pywa.WhatsAppError.from_dict({"code": code, "message": ""})) is not pywa.WhatsAppError
    ]
    assert len(known) > 45


def test_one_code_says_two_things() -> None:
    assert classify(100, 33).kind is AUTH
    assert classify(100, 33).scope is Scope.NUMBER
    assert classify(100, 2388024).kind is REQUEST
    assert classify(100, 2388024).subcode == 2388024
    assert classify(190, 463).subcode == 463


@pytest.mark.parametrize("status", [None, 200, 302, 400, 403, 500, 502, 504])
def test_what_no_graph_error_answered_may_have_been_taken(status: int | None) -> None:
    fault = classify(None, http_status=status)
    assert fault.unsure
    assert fault.tries == 3


def test_a_proxy_that_says_too_many_took_nothing() -> None:
    fault = classify(None, http_status=429)
    assert (fault.kind, fault.unsure, fault.slow) == (RATE, False, True)


def test_codes_that_no_table_knows() -> None:
    assert classify(424242, http_status=400).kind is REQUEST
    assert not classify(424242, http_status=400).waits
    assert classify(424242).alarm
    assert classify(424242, http_status=500).unsure
    assert classify(424242, http_status=400, is_transient=True).tries == 3
    # A listed code counts, whatever the HTTP status.
    assert classify(3, http_status=500) == classify(3)
    assert classify(131047, http_status=500, is_transient=True).kind is Kind.WINDOW


def test_pauses_grow() -> None:
    assert [classify(131056).wait(n) for n in (1, 2, 3, 4, 5, 6, 400)] == [1, 4, 16, 64, 256, 270, 270]
    assert [classify(131000).wait(n) for n in (1, 2, 3, 4)] == [2, 8, 32, None]
    assert [classify(132015).wait(n) for n in (1, 2, 3)] == [3 * 3600, 6 * 3600, 6 * 3600]
    assert classify(132015).wait(1, code=True) is None
    assert classify(131026).wait(1) is None


@given(
    st.one_of(st.none(), st.integers(), st.sampled_from(sorted(FAULTS))),
    st.one_of(st.none(), st.integers(0, 1000)),
    st.one_of(st.none(), st.integers(100, 599)),
    st.booleans(),
    st.integers(1, 1000),
)
def test_whatever_comes_is_judged(
    code: int | None, subcode: int | None, status: int | None, transient: bool, tries: int
) -> None:
    fault = classify(code, subcode, http_status=status, is_transient=transient)
    assert fault.code == code
    pause = fault.wait(tries)
    assert (pause is None) == (fault.tries is not UNCOUNTED and tries > fault.tries)
    assert pause is None or 0 < pause <= 72 * 3600


@pytest.mark.parametrize("code", FAULTS)
def test_each_code_is_told_in_both_languages(code: int) -> None:
    sentence = meaning(str(code))
    assert sentence == FAULTS[code].title
    assert languages.locale("pt").sentence(sentence) != sentence


def test_a_code_that_nobody_knows_is_told_with_its_number() -> None:
    assert meaning("100/33") == "the object is missing, or not visible to this token"
    sentence = meaning("139999")
    assert sentence == "Meta's error 139999, about which nothing more is known here"
    assert "139999" in languages.locale("pt").sentence(sentence)
    assert "nada mais" in languages.locale("pt").sentence(sentence)
    for ours in ("", "http 500", "pair", "0x00000058", "١٢"):
        assert meaning(ours) is None
