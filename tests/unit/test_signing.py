"""Signatures: vectors computed independently, and what a receiver accepts."""

from __future__ import annotations

import base64
import hmac
import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.webhooks.delivery import signing

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OTHER = "whsec_" + base64.b64encode(bytes(32)).decode()
AT = datetime(2026, 3, 1, 12, 0, 0, 987654, UTC)
BODY = b'{"id":"evt","type":"message.delivered"}'


def test_vectors() -> None:
    # Computed with `openssl dgst -sha256 -mac HMAC` over the same bytes.
    assert signing.sign(SECRET, "2026-03-01T12:00:00.987Z", BODY) == (
        "v1=75c3eb877f8052915e95155bf77010ab1d43260dea71753ff6ef807fdc6b284a"
    )
    # The example of the Standard Webhooks reference implementations.
    assert (
        signing.sign_standard(
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "1614265330",
            b'{"test": 2432232314}',
        )
        == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    )


@given(st.text(st.characters(codec="utf-8"), max_size=200), st.binary(max_size=300))
def test_it_is_the_hmac_of_the_standard_library(secret: str, body: bytes) -> None:
    expected = hmac.digest(secret.encode(), b"stamp." + body, "sha256").hex()
    assert signing.sign(secret, "stamp", body) == "v1=" + expected


def test_a_signer_and_a_verifier_are_used_again() -> None:
    signer, verifier = signing.Signer([OTHER, SECRET]), signing.Verifier([SECRET, OTHER])
    for body, at in ((BODY, AT), (b"", AT), (b"x" * 1000, AT + timedelta(seconds=61)), (BODY, AT)):
        made = signer.headers(event_id="evt", request_id="req", body=body, at=at)
        assert made == signing.headers([OTHER, SECRET], event_id="evt", request_id="req", body=body, at=at)
        for one, problem in ((body, None), (body + b" ", "wrong signature")):
            timestamp, signature = made["x-service-timestamp"], made["x-service-signature"]
            assert verifier.verify(timestamp=timestamp, signature=signature, body=one, now=AT) == problem


def test_a_secret_is_32_random_bytes_in_base64() -> None:
    secrets = {signing.new_secret() for _ in range(100)}
    assert len(secrets) == 100
    for secret in secrets:
        assert re.fullmatch(r"whsec_[A-Za-z0-9+/]{43}=", secret)
        assert len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) == 32


def test_the_headers_of_an_attempt() -> None:
    made = signing.headers([SECRET], event_id="evt", request_id="req", body=BODY, at=AT)
    assert made == {
        "x-service-timestamp": "2026-03-01T12:00:00.987Z",
        "x-service-signature": signing.sign(SECRET, "2026-03-01T12:00:00.987Z", BODY),
        "x-service-event-id": "evt",
        "x-request-id": "req",
        "webhook-id": "evt",
        "webhook-timestamp": "1772366400",
        "webhook-signature": signing.sign_standard(SECRET, "evt", "1772366400", BODY),
    }


def test_during_a_rotation_both_secrets_sign() -> None:
    made = signing.headers([OTHER, SECRET], event_id="evt", request_id="req", body=BODY, at=AT)
    assert made["x-service-signature"] == signing.sign(OTHER, made["x-service-timestamp"], BODY)
    newest, older = made["webhook-signature"].split(" ")
    assert newest == signing.sign_standard(OTHER, "evt", made["webhook-timestamp"], BODY)
    assert older == signing.sign_standard(SECRET, "evt", made["webhook-timestamp"], BODY)
    for held in ([SECRET], [OTHER]):
        assert standard(made, held) is None
    assert own(made, [SECRET, OTHER]) is None
    assert own(made, [SECRET]) == "wrong signature"


def own(made: dict[str, str], secrets: list[str], *, body: bytes = BODY, now: datetime = AT) -> str | None:
    return signing.verify(
        secrets, timestamp=made["x-service-timestamp"], signature=made["x-service-signature"], body=body, now=now
    )


def standard(made: dict[str, str], secrets: list[str], *, body: bytes = BODY, now: datetime = AT) -> str | None:
    return signing.verify_standard(
        secrets,
        event_id=made["webhook-id"],
        timestamp=made["webhook-timestamp"],
        signature=made["webhook-signature"],
        body=body,
        now=now,
    )


@given(st.binary(max_size=200), st.text(max_size=20), st.integers(0, 2**32))
def test_what_is_signed_verifies(body: bytes, event_id: str, second: int) -> None:
    at = datetime.fromtimestamp(second, UTC)
    made = signing.headers([SECRET], event_id=event_id, request_id="", body=body, at=at)
    assert own(made, [SECRET], body=body, now=at) is None
    assert standard(made, [SECRET], body=body, now=at) is None
    assert own(made, [OTHER], body=body, now=at) == "wrong signature"
    assert standard(made, [OTHER], body=body, now=at) == "wrong signature"
    assert own(made, [SECRET], body=body + b" ", now=at) == "wrong signature"
    assert standard(made, [SECRET], body=body + b" ", now=at) == "wrong signature"


@pytest.mark.parametrize("sign", [1, -1])
def test_five_minutes_either_way_are_tolerated(sign: int) -> None:
    at = AT.replace(microsecond=0)
    made = signing.headers([SECRET], event_id="evt", request_id="req", body=BODY, at=at)
    for seconds, problem in ((0, None), (299, None), (300, None), (301, "timestamp out of tolerance")):
        now = at + sign * timedelta(seconds=seconds)
        assert own(made, [SECRET], now=now) == problem
        assert standard(made, [SECRET], now=now) == problem


def test_a_retry_after_six_minutes_is_signed_afresh() -> None:
    later = AT + timedelta(minutes=6)
    first = signing.headers([SECRET], event_id="evt", request_id="req", body=BODY, at=AT)
    retry = signing.headers([SECRET], event_id="evt", request_id="req", body=BODY, at=later)
    assert own(first, [SECRET], now=later) == "timestamp out of tolerance"
    assert own(retry, [SECRET], now=later) is None
    assert standard(retry, [SECRET], now=later) is None
    assert first["x-service-event-id"] == retry["x-service-event-id"]


def test_a_zone_other_than_utc_is_the_same_instant() -> None:
    at = AT.astimezone(timezone(timedelta(hours=5, minutes=30)))
    made = signing.headers([SECRET], event_id="evt", request_id="req", body=BODY, at=at)
    assert made["x-service-timestamp"] == "2026-03-01T12:00:00.987Z"
    assert own(made, [SECRET]) is None


def test_other_versions_are_refused() -> None:
    made = signing.headers([SECRET], event_id="evt", request_id="req", body=BODY, at=AT)
    digest = made["x-service-signature"].removeprefix("v1=")
    for signature in ("v2=" + digest, "v0=" + digest, digest, "", "V1=" + digest, " v1=" + digest, "v1:" + digest):
        assert own(made | {"x-service-signature": signature}, [SECRET]) == "unknown version"
    tail = made["webhook-signature"].removeprefix("v1,")
    for signature in ("v2," + tail, "v1a," + tail, tail, ""):
        assert standard(made | {"webhook-signature": signature}, [SECRET]) == "unknown version"
    assert standard(made | {"webhook-signature": f"v1a,x {made['webhook-signature']}"}, [SECRET]) is None


def test_wrong_and_strange_signatures_are_refused_without_raising() -> None:
    made = signing.headers([SECRET], event_id="evt", request_id="req", body=BODY, at=AT)
    digest = made["x-service-signature"]
    for signature in ("v1=", digest[:-1], digest + "0", digest.upper().replace("V1", "v1"), "v1=é", "v1=\udcff"):
        assert own(made | {"x-service-signature": signature}, [SECRET]) == "wrong signature"
        assert standard(made | {"webhook-signature": signature.replace("v1=", "v1,")}, [SECRET]) == "wrong signature"
    assert own(made, []) == "wrong signature"


def test_timestamps_that_are_none_are_refused_without_raising() -> None:
    made = signing.headers([SECRET], event_id="evt", request_id="req", body=BODY, at=AT)
    for text in ("", "now", "2026-03-01T12:00:00", "2026-13-01T12:00:00Z", "1772366400", "\udcff"):
        assert own(made | {"x-service-timestamp": text}, [SECRET]) == "malformed timestamp"
    for text in ("", "now", "-1", "1e9", "1772366400.5", "9" * 5000, "٣", "²"):
        assert standard(made | {"webhook-timestamp": text}, [SECRET]) == "malformed timestamp"


def test_moving_a_signature_to_another_timestamp_or_event_fails() -> None:
    made = signing.headers([SECRET], event_id="evt", request_id="req", body=BODY, at=AT)
    assert own(made | {"x-service-timestamp": "2026-03-01T12:00:01.000Z"}, [SECRET]) == "wrong signature"
    assert standard(made | {"webhook-timestamp": "1772366401"}, [SECRET]) == "wrong signature"
    assert standard(made | {"webhook-id": "evt2"}, [SECRET]) == "wrong signature"


def test_a_secret_of_another_form_cannot_make_a_standard_signature() -> None:
    for secret in ("", "secret", "whsec_***", "whsec_AAA"):
        with pytest.raises(ValueError):
            signing.sign_standard(secret, "evt", "1", b"")


def test_headers_are_the_same_as_lines() -> None:
    signer = signing.Signer([signing.new_secret(), signing.new_secret()])
    values = {"event_id": "e-1", "request_id": "r 1", "body": b"{}", "at": datetime(2026, 3, 1, 12, tzinfo=UTC)}
    headers = signer.headers(**values)  # type: ignore[arg-type]
    assert signer.lines(**values) == "".join(f"{name}: {value}\r\n" for name, value in headers.items())  # type: ignore[arg-type]
    assert len(headers) == signing.LINES
