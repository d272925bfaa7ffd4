"""The effect of an account's settings on a message: fields, addresses, alphabets, rates."""

from __future__ import annotations

from collections import deque
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from smpp_peer import submission

from heliograph.base.process.settings import SettingsError
from heliograph.sms.accepting import encoding
from heliograph.suppliers.alphabets import gsm7
from heliograph.suppliers.bucket import Bucket
from heliograph.suppliers.contract import Account, Inbound
from heliograph.suppliers.smpp.codec import texts
from heliograph.suppliers.smpp.codec.pdu import DeliverSm, SubmitSm
from heliograph.suppliers.smpp.connector import connect
from heliograph.suppliers.smpp.receipts import ReceiptRules, parse
from heliograph.suppliers.smpp.settings import settings_from
from heliograph.suppliers.smpp.submits import Builder

LEAST = {"host": "smsc.example", "port": 2775, "system_id": "esme"}


def built(settings: dict[str, Any] | None = None, **changed: Any) -> list[SubmitSm]:
    return Builder(settings_from(LEAST | (settings or {}))).build(submission(**changed))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("host", ""),
        ("host", []),
        ("port", 0),
        ("port", 70000),
        ("port", "2775"),
        ("system_id", ""),
        ("bind", "both"),
        ("window", 0),
        ("submits_per_second", -1),
        ("response_seconds", 0),
        ("priority", 4),
        ("destination", [1]),
        ("alphanumeric", [5, 256]),
        ("long_messages", "udh"),
        ("default_alphabet", "utf8"),
        ("resp_id_base", "octal"),
        ("statuses", {"0x45": "X"}),
        ("statuses", {"forty": "P"}),
        ("tls_server_name", ".example"),
        ("tls_server_name", "smsc..example"),
        ("tls_server_name", "smsc example"),
        ("vendor_tlvs", {"10000": "a"}),
        ("vendor_tlvs", {"1400": "hex:0"}),
        ("vendor_tlvs", {"1400": "Ж"}),
        ("final_states", {"ACCEPTD": "fine"}),
        ("registered_delivery", 256),
        ("single_shift", ["french"]),
        ("locking_shift", ["spanish"]),
        ("nonsense", 1),
    ],
)
def test_a_wrong_setting_is_named(field: str, value: object) -> None:
    with pytest.raises(SettingsError, match=field):
        settings_from(LEAST | {field: value})


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("port", "smpp", "must be a whole number"),
        ("pdu_seconds", "soon", "must be a number"),
        ("submits_per_second", float("inf"), "must be a number"),
        ("tls", 2, "must be yes or no"),
        ("locking_shift", 1, "must be a list"),
        ("long_messages", "x", "cannot be 'x'"),
        ("system_type", 1, "must be text$"),
        ("destination", [1], "must have 2 values$"),
        ("bogus", 1, "is not a setting$"),
    ],
)
def test_what_it_must_be_is_said_in_plain_words(field: str, value: object, what: str) -> None:
    with pytest.raises(SettingsError, match=f"^{field} {what}"):
        settings_from(LEAST | {field: value})


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(SettingsError, match=r"^system_id is required$"):
        settings_from({"host": "smsc.example", "port": 2775})


def test_what_cannot_be_bound_with_is_refused_before_connecting() -> None:
    async def take(items: Any) -> None: ...

    for settings, secret in ((LEAST, "Ж"), (LEAST, "nul\0"), (LEAST | {"tls_ca_file": "/nowhere.pem"}, "x")):
        with pytest.raises(SettingsError):
            connect(Account(UUID(int=1), settings, secret), lambda submission, outcome: None, take, take)


def test_the_defaults() -> None:
    (pdu,) = built()
    assert pdu == SubmitSm(
        source_addr_ton=5,
        source_addr="ACME",
        dest_addr_ton=1,
        dest_addr_npi=1,
        destination_addr="258841234567",
        registered_delivery=1,
        short_message=b"Hello",
        tlvs={0x0204: b"\x12\x34"},
    )


def test_every_field_that_a_supplier_may_want() -> None:
    (pdu,) = built(
        {
            "service_type": "WAP",
            "protocol_id": 1,
            "priority": 2,
            "esm_class": 3,
            "registered_delivery": 17,
            "data_coding_gsm7": 0xF1,
            "user_message_reference": False,
            "vendor_tlvs": {"1400": "1107", "0x1401": "hex:00ff"},
        }
    )
    assert (pdu.service_type, pdu.protocol_id, pdu.priority_flag, pdu.esm_class) == ("WAP", 1, 2, 3)
    assert (pdu.registered_delivery, pdu.data_coding) == (17, 0xF1)
    assert pdu.tlvs == {0x1400: b"1107", 0x1401: b"\x00\xff"}


def test_a_long_message_keeps_the_base_of_esm_class() -> None:
    assert {pdu.esm_class for pdu in built({"esm_class": 3}, segments=(b"a", b"b"))} == {0x43}


@pytest.mark.parametrize(
    ("sender", "address", "ton", "npi"),
    [
        ("ACME", "ACME", 5, 0),
        ("+258841234567", "258841234567", 1, 1),
        ("258841234567", "258841234567", 1, 1),
        ("12345", "12345", 3, 0),
        ("4U", "4U", 5, 0),
    ],
)
def test_senders(sender: str, address: str, ton: int, npi: int) -> None:
    (pdu,) = built(sender=sender)
    assert (pdu.source_addr, pdu.source_addr_ton, pdu.source_addr_npi) == (address, ton, npi)


def test_addresses_by_kind_may_be_overridden() -> None:
    settings = {"short_code": [6, 1], "destination": [2, 1]}
    (pdu,) = built(settings, sender="12345")
    assert (pdu.source_addr_ton, pdu.source_addr_npi, pdu.dest_addr_ton, pdu.dest_addr_npi) == (6, 1, 2, 1)


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (None, ""),
        (0, ""),
        (3600, "000000010000000R"),
        (86_400, "000001000000000R"),
        (90_061, "000001010101000R"),
        (10**9, "000030000000000R"),
    ],
)
def test_validity_is_relative(seconds: int | None, written: str) -> None:
    assert built(validity_seconds=seconds)[0].validity_period == written
    assert len(written) in (0, 16)
    assert built({"validity": "none"}, validity_seconds=seconds)[0].validity_period == ""


def test_the_accounts_own_validity_is_for_messages_without_one() -> None:
    assert built({"validity_seconds": 3600})[0].validity_period == "000000010000000R"
    assert built({"validity_seconds": 3600}, validity_seconds=60)[0].validity_period == "000000000100000R"


def sent_text(pdus: list[SubmitSm], codec: str = "gsm7") -> str:
    """The complete text that a handset would show."""
    whole = b"".join(pdu.short_message[pdu.short_message[0] + 1 :] for pdu in pdus)
    return gsm7.decode(whole) if codec == "gsm7" else whole.decode(codec)


@given(st.text(st.sampled_from([c for c in gsm7.BASIC if c != "\x1b"] + list(gsm7.EXTENSION)), min_size=1, max_size=60))
def test_septets_are_read_as_they_were_written(text: str) -> None:
    assert gsm7.decode(b"".join(encoding.encode(text).segments)) == text


def test_other_default_alphabets() -> None:
    coded = encoding.encode("Ça va à 5 @ [x]")
    (pdu,) = built({"default_alphabet": "latin1"}, segments=coded.segments)
    assert (pdu.short_message, pdu.data_coding) == ("Ça va à 5 @ [x]".encode("latin-1"), 0)
    (pdu,) = built({"default_alphabet": "ascii"}, segments=encoding.encode("$ @ _").segments)
    assert pdu.short_message == b"$ @ _"


@pytest.mark.parametrize("alphabet", ["latin1", "ascii"])
def test_a_character_that_an_alphabet_lacks_sends_the_whole_text_as_ucs2(alphabet: str) -> None:
    (pdu,) = built({"default_alphabet": alphabet}, segments=encoding.encode("5 €").segments)
    assert (pdu.short_message, pdu.data_coding) == ("5 €".encode("utf-16-be"), 8)
    # One segment of 102 septets, and a message of three, become two and seven of UCS-2: split again, not refused.
    for text, segments in (("€" + "a" * 100, 2), ("a" * 440 + "€", 7)):
        pdus = built({"default_alphabet": alphabet}, segments=encoding.encode(text).segments)
        assert [(pdu.data_coding, len(pdu.short_message) <= 140) for pdu in pdus] == [(8, True)] * segments
        assert [pdu.short_message[4:6] for pdu in pdus] == [bytes((segments, n)) for n in range(1, segments + 1)]
        assert sent_text(pdus, "utf-16-be") == text


@pytest.mark.parametrize(
    ("text", "size", "segments"),
    [
        ("a" * 161, 152, 2),
        ("a" * 304, 152, 2),
        ("a" * 305, 152, 3),
        ("a" * 151 + "€" * 80, 152, 3),
        ("a" * 1530, 152, 11),
        ("ж" * 71, 132, 2),
        ("ж" * 132, 132, 2),
        ("ж" * 134, 132, 3),
    ],
)
def test_a_header_of_seven_octets_leaves_less_room(text: str, size: int, segments: int) -> None:
    coded = encoding.encode(text)
    pdus = built({"long_messages": "udh16"}, segments=coded.segments, encoding=coded.encoding)
    bodies = [pdu.short_message[7:] for pdu in pdus]
    assert [pdu.short_message[:7] for pdu in pdus] == [
        bytes((6, 8, 4, 0x12, 0x34, segments, number)) for number in range(1, segments + 1)
    ]
    assert max(map(len, bodies)) <= size
    assert sent_text(pdus, "gsm7" if coded.encoding == "gsm7" else "utf-16-be") == text
    # No escape pair and no surrogate pair is split, and other suppliers get what was split at acceptance.
    assert not any(body.endswith(b"\x1b") for body in bodies if coded.encoding == "gsm7")
    for way in ("udh8", "sar"):
        header = 6 if way == "udh8" else 0
        others = built({"long_messages": way}, segments=coded.segments, encoding=coded.encoding)
        assert tuple(pdu.short_message[header:] for pdu in others) == coded.segments


def handset(pdu: SubmitSm) -> Inbound:
    """The text as a handset, or another system, parses it: with the reading side's own parser."""
    read = parse(
        DeliverSm(1, esm_class=pdu.esm_class, data_coding=pdu.data_coding, short_message=pdu.short_message),
        b"",
        ReceiptRules(),
    )
    assert isinstance(read, Inbound)
    return read


def decoded_text(pdus: list[SubmitSm]) -> str:
    """The text of all parts, decoded with the tables that their headers name."""
    read = [handset(pdu) for pdu in pdus]
    if read[0].text is not None:
        return "".join(one.text or "" for one in read)
    (form,) = {one.form for one in read}
    return texts.read(b"".join(one.body for one in read), form) or ""


PORTUGUESE = "Olá, João! Amanhã há pão às 9. "
HINDI = "\u0928\u092e\u0938\u094d\u0924\u0947 "


@pytest.mark.parametrize(
    ("text", "settings", "before", "header", "segments"),
    [
        # One element leaves 155 septets of a segment, both 152; behind a reference 149 and 146.
        (PORTUGUESE * 4, {"single_shift": ["portuguese"]}, 2, "03240103", 1),
        (PORTUGUESE * 4, {"locking_shift": ["portuguese"]}, 2, "03250103", 1),
        (PORTUGUESE * 6, {"locking_shift": ["portuguese"]}, 3, "080003340201250103", 2),
        (PORTUGUESE * 6, {"locking_shift": ["portuguese"], "long_messages": "udh16"}, 3, "09080412340201250103", 2),
        ("ção" * 30, {"single_shift": ["spanish", "portuguese"]}, 2, "03240103", 1),
        ("ñandú" * 20, {"single_shift": ["spanish", "portuguese"]}, 2, "03240102", 1),
        (HINDI * 20, {"locking_shift": ["hindi"]}, 3, "03250106", 1),
        (HINDI * 20 + "ABC", {"locking_shift": ["hindi"], "single_shift": ["hindi"]}, 3, "06240106250106", 1),
    ],
)
def test_national_tables_where_an_account_offers_them(
    text: str, settings: dict[str, Any], before: int, header: str, segments: int
) -> None:
    coded = encoding.encode(text)
    assert (coded.encoding, len(coded.segments)) == ("ucs2", before)
    pdus = built(settings, segments=coded.segments, encoding="ucs2")
    assert len(pdus) == segments
    assert pdus[0].short_message.startswith(bytes.fromhex(header))
    assert {(pdu.data_coding, pdu.esm_class) for pdu in pdus} == {(0, 0x40)}
    assert decoded_text(pdus) == coded.text
    # Each fits in 140 octets once its septets are packed behind the header, which ends at a whole septet.
    for pdu in pdus:
        octets = pdu.short_message[0] + 1
        assert -(-octets * 8 // 7) + len(handset(pdu).body) <= 160
    assert (
        Builder(settings_from(LEAST | settings)).count(submission(segments=coded.segments, encoding="ucs2")) == segments
    )


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("Olá", {"single_shift": ["portuguese"]}),  # nothing would be saved
        (PORTUGUESE * 4, {"single_shift": ["spanish"]}),  # no ã
        (PORTUGUESE * 4 + "😀", {"single_shift": ["portuguese"], "locking_shift": ["portuguese"]}),
        (PORTUGUESE * 6, {"locking_shift": ["portuguese"], "long_messages": "sar"}),
        (PORTUGUESE * 6, {"locking_shift": ["portuguese"], "long_messages": "payload"}),
    ],
)
def test_otherwise_it_goes_as_ucs2(text: str, settings: dict[str, Any]) -> None:
    coded = encoding.encode(text)
    plain = built({"long_messages": settings.get("long_messages", "udh8")}, segments=coded.segments, encoding="ucs2")
    assert built(settings, segments=coded.segments, encoding="ucs2") == plain


def test_what_the_gsm_alphabet_has_needs_no_table() -> None:
    coded = encoding.encode("Olé, señor " * 20)
    settings = {"single_shift": ["portuguese", "spanish"], "locking_shift": ["portuguese"]}
    assert built(settings, segments=coded.segments) == built(segments=coded.segments)


def test_what_goes_out_as_a_whole_is_several_segments_all_the_same() -> None:
    long = submission(segments=encoding.encode("a" * 400).segments)
    whole = Builder(settings_from(LEAST | {"long_messages": "payload"}))
    assert (whole.count(long), whole.segments(long)) == (1, 3)


def test_a_message_of_one_segment_is_never_cut() -> None:
    (pdu,) = built({"long_messages": "udh16"}, segments=encoding.encode("a" * 160).segments)
    assert pdu.short_message == b"a" * 160


def test_ucs2_has_its_data_coding() -> None:
    (pdu,) = built(segments=("Олá".encode("utf-16-be"),), encoding="ucs2")
    assert (pdu.data_coding, pdu.short_message) == (8, "Олá".encode("utf-16-be"))


# -- rate --------------------------------------------------------------------------------------------------------------


def test_a_bucket_gives_its_rate_and_no_more() -> None:
    bucket = Bucket(100, 0.0)
    given_out, now = 0, 0.0
    for _ in range(1000):
        now += 0.001
        tokens = bucket.available(now)
        bucket.take(tokens)
        given_out += tokens
    assert 99 <= given_out <= 106


def test_a_slow_bucket_gives_one_at_a_time() -> None:
    bucket = Bucket(0.5, 0.0)
    assert bucket.available(0.0) == 1
    bucket.take(1)
    assert bucket.wait(0.0) == pytest.approx(2.0)
    assert bucket.available(1.9) == 0
    assert bucket.available(2.1) == 1


@pytest.mark.parametrize("rate", [300, 700])
def test_a_wait_is_long_enough_for_a_timer(rate: float) -> None:
    """A shorter timer fires at once on some event loops, again and again: at 1000 a second that took half a core."""
    bucket, now, looks = Bucket(rate, 0.0), 0.0, 0
    bucket.take(1)
    while not bucket.available(now):
        # The clock of such a loop has whole milliseconds, and its timers are rounded to them.
        now = round(now + round(bucket.wait(now), 3), 3)
        looks += 1
        assert looks <= 2
    assert now <= 1 / rate + 0.001


def test_a_throttle_halves_once_a_second_and_recovers() -> None:
    bucket = Bucket(100, 0.0)
    for at in (10.0, 10.1, 10.9):
        bucket.slow(at)
    assert bucket.rate == 50
    bucket.available(11.0)
    assert bucket.rate == 50
    bucket.available(13.0)
    assert bucket.rate == pytest.approx(60)
    bucket.slow(13.0)
    assert bucket.rate == pytest.approx(30)
    bucket.available(60.0)
    assert bucket.rate == 100


def test_a_new_ceiling_does_not_undo_a_throttle() -> None:
    bucket = Bucket(100, 0.0)
    bucket.resize(200, 0.0)
    assert bucket.rate == 200
    bucket.slow(1.0)
    bucket.resize(300, 1.0)
    assert bucket.rate == 100
    bucket.resize(50, 1.0)
    assert bucket.rate == 50
    bucket.available(60.0)
    assert bucket.rate == 50


def test_a_throttle_keeps_what_the_supplier_takes() -> None:
    """The account is configured for 100 a second and takes 80."""
    bucket = Bucket(100, 0.0)
    for n in range(80):
        bucket.accepted(9.0 + n / 80)
    bucket.slow(9.99)
    assert bucket.rate == pytest.approx(80, rel=0.05)


class Limited:
    """A supplier that accepts `rate` segments a second: evenly, some at once (`burst`), or that many in each second of
    its clock (`burst` 0)."""

    def __init__(self, rate: int, burst: int) -> None:
        self.rate, self.burst = rate, burst
        self.tokens, self.at = float(burst or rate), 0.0

    def takes(self, now: float) -> bool:
        if self.burst:
            self.tokens = min(self.burst, self.tokens + (now - self.at) * self.rate)
        elif int(now) != int(self.at):
            self.tokens = self.rate
        self.at = now
        taken = self.tokens >= 1
        self.tokens -= taken
        return taken


def carried(supplier: Limited, *, round_trip: float, window: int, seconds: int) -> tuple[list[int], list[int]]:
    """Segments accepted and throttled in each second, with as much work as the bucket lets through."""
    bucket, now = Bucket(0, 0.0), 0.0
    flying: deque[tuple[float, bool]] = deque()
    accepted, throttled = [0] * (seconds + 1), [0] * (seconds + 1)
    while now < seconds:
        while flying and flying[0][0] <= now:
            if flying.popleft()[1]:
                bucket.accepted(now)
                accepted[int(now)] += 1
            else:
                bucket.slow(now)
                throttled[int(now)] += 1
        places = min(bucket.available(now), window - len(flying))
        bucket.take(max(0, places))
        flying.extend((now + round_trip, supplier.takes(now)) for _ in range(places))
        now += 0.002
    return accepted[:seconds], throttled[:seconds]


@pytest.mark.parametrize("burst", [0, 5, 50], ids=["by the clock's second", "a few at once", "a second at once"])
@pytest.mark.parametrize("round_trip", [0.002, 0.05])
def test_without_a_rate_the_suppliers_own_is_found_in_seconds_and_kept(burst: int, round_trip: float) -> None:
    accepted, throttled = carried(Limited(50, burst), round_trip=round_trip, window=10, seconds=30)
    assert sum(accepted[4:]) / 26 > 0.9 * 50
    assert min(sum(accepted[n : n + 3]) / 3 for n in range(4, 27)) > 0.9 * 50
    assert sum(throttled) < 0.1 * sum(accepted)


def test_a_rate_that_was_found_follows_the_supplier_up_and_down() -> None:
    supplier = Limited(50, 5)
    bucket, now, accepted = Bucket(0, 0.0), 0.0, [0] * 61
    while now < 60:
        supplier.rate = 50 if now < 10 else 10 if now < 25 else 100
        for _ in range(min(10, bucket.available(now))):
            bucket.take(1)
            if supplier.takes(now):
                bucket.accepted(now)
                accepted[int(now)] += 1
            else:
                bucket.slow(now)
        now += 0.002
    assert sum(accepted[15:25]) / 10 > 0.9 * 10
    assert sum(accepted[45:60]) / 15 > 0.9 * 100


@given(st.floats(0.1, 5000), st.lists(st.tuples(st.floats(0, 3), st.booleans(), st.integers(0, 5)), max_size=30))
def test_a_rate_never_leaves_its_bounds(ceiling: float, steps: list[tuple[float, bool, int]]) -> None:
    bucket, now = Bucket(ceiling, 0.0), 0.0
    for pause, throttled, taken in steps:
        now += pause
        assert bucket.available(now) <= max(1, ceiling * 0.05)
        bucket.take(taken)
        if throttled:
            bucket.slow(now)
        assert min(1.0, ceiling) <= bucket.rate <= ceiling
        assert bucket.wait(now) >= 0
