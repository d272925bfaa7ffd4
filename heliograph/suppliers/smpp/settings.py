"""The settings of one SMPP account: with default, unit and meaning next to each field.

The rule nobody may break: the password is not among them. It is passed separately, from where secrets are sealed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from heliograph.base.sentences import said
from heliograph.suppliers.alphabets.national import IDENTIFIERS, LOCKING, Language
from heliograph.suppliers.contract import ReceiptState
from heliograph.suppliers.message_ids import Base
from heliograph.suppliers.settings import (
    Country,
    HandlesStop,
    InboundPrepend,
    InboundStrip,
    RecipientErrors,
    checked,
    demand,
    demand_numbering,
)
from heliograph.suppliers.smpp.codec.statuses import CLASSES

#: (type of number, numbering plan), SMPP 3.4 §5.2.5 and §5.2.6.
TonNpi = tuple[int, int]


class SmppSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to reach an account, and this supplier's variant of the protocol."""

    host: Annotated[str | tuple[str, ...], "Host name or IP address, or several; all their addresses are tried in turn"]
    port: Annotated[int, "TCP port"]
    system_id: Annotated[str, "system_id of the account"]
    system_type: Annotated[str, "Empty unless the supplier specifies one"] = ""
    address_range: Annotated[str, "Empty unless the supplier specifies one"] = ""
    bind: Annotated[Literal["transceiver", "pair"], "One transceiver per session, or a transmitter and a receiver"] = (
        "transceiver"
    )
    window: Annotated[int, "Maximum unanswered submits per session"] = 10
    submits_per_second: Annotated[float, "Maximum segments per second and session; 0: as fast as the window allows"] = (
        0.0
    )

    tls: Annotated[bool, "Use TLS. Without it the password is sent in clear text: only for a VPN or this machine"] = (
        True
    )
    tls_verify: Annotated[bool, "Verify the supplier's certificate and host name"] = True
    tls_server_name: Annotated[str, "Name in the certificate, if it differs from the host"] = ""
    tls_ca_file: Annotated[str, "PEM file of trusted certificate authorities; empty: the system's"] = ""
    tls_certificate_file: Annotated[str, "PEM file of our client certificate, with its chain"] = ""
    tls_key_file: Annotated[str, "PEM file of its key; empty: in the certificate's file"] = ""

    connect_seconds: Annotated[float, "Time limit for TCP and TLS, before the next address is tried"] = 10.0
    bind_seconds: Annotated[float, "Time limit for the bind response"] = 15.0
    enquire_seconds: Annotated[float, "Idle time before an enquire_link is sent"] = 20.0
    silence_seconds: Annotated[float, "Time limit for its response, before the session is closed"] = 10.0
    response_seconds: Annotated[
        float,
        (
            "Time limit for a submit response; then its outcome is unknown, but a late response counts until "
            "the grace period ends"
        ),
    ] = 60.0
    pdu_seconds: Annotated[float, "Time limit from the first octet of a PDU to its last"] = 10.0
    unbind_seconds: Annotated[float, "Time limit for the unbind response"] = 5.0
    max_timeouts: Annotated[
        int,
        "Consecutive unanswered submits after which a session stops sending; it is closed if no late response arrives",
    ] = 5
    reconnect_seconds: Annotated[float, "Delay before reconnecting; it doubles each time, ±30 %"] = 1.0
    reconnect_max_seconds: Annotated[float, "Longest such delay; also how long a session must last to reset it"] = 60.0
    refused_seconds: Annotated[
        float, "Delay after a bind refused because of its password, system_id or system_type"
    ] = 300.0
    queue_seconds: Annotated[
        float, "Longest time a message waits for room in a window, before it is returned to the queue"
    ] = 5.0
    receipts_queue: Annotated[
        int, "Maximum receipts that wait to be stored; beyond that, reading stops until half of them are stored"
    ] = 5000

    long_messages: Annotated[
        Literal["udh8", "udh16", "sar", "payload"],
        ("How segments are joined; udh16 splits at 152/66, so a long text may take one more; payload: one id for all"),
    ] = "udh8"
    destination: Annotated[TonNpi, "TON and NPI of recipients"] = (1, 1)
    international: Annotated[TonNpi, "TON and NPI of senders that are phone numbers"] = (1, 1)
    alphanumeric: Annotated[TonNpi, "TON and NPI of alphanumeric senders"] = (5, 0)
    short_code: Annotated[TonNpi, "TON and NPI of senders of at most 8 digits"] = (3, 0)
    service_type: Annotated[str, "service_type of each submit; some suppliers bill or route by it"] = ""
    protocol_id: Annotated[int, "protocol_id of each submit"] = 0
    priority: Annotated[int, "priority_flag of each submit, 0 to 3"] = 0
    urgent_priority: Annotated[int, "priority_flag of one-time codes, if higher; 0: same as all"] = 1
    esm_class: Annotated[int, "Base value of esm_class: 0, or 3 (store and forward) if the supplier requires it"] = 0
    registered_delivery: Annotated[
        int, "1: receipts for success and failure; 2: for failure; 0: none; +16: intermediate notifications too"
    ] = 1
    validity: Annotated[Literal["relative", "none"], "Whether to send a message's validity, as a relative time"] = (
        "relative"
    )
    validity_seconds: Annotated[int, "Validity of messages that specify none; 0: the supplier's default"] = 0
    default_alphabet: Annotated[
        Literal["gsm", "latin1", "ascii"],
        "What data_coding 0 means to the supplier; text outside this alphabet is sent as UCS-2",
    ] = "gsm"
    single_shift: Annotated[
        tuple[Language, ...],
        "Languages whose single shift table may be used instead of UCS-2: portuguese, spanish, …",
    ] = ()
    locking_shift: Annotated[
        tuple[Language, ...],
        "Languages whose locking shift table may be used instead of UCS-2: hindi, urdu, portuguese, …",
    ] = ()
    data_coding_gsm7: Annotated[int, "data_coding of the default alphabet"] = 0
    data_coding_ucs2: Annotated[int, "data_coding of UCS-2"] = 8
    user_message_reference: Annotated[bool, "Send our 16-bit reference as a TLV; some suppliers echo it"] = True
    vendor_tlvs: Annotated[dict[str, str], "Tag (hex) → text, or hex: and octets; added to every submit"] = {}

    resp_id_base: Annotated[Base, "Number base of the id in submit_sm_resp: text, hex or dec"] = "text"
    dlr_id_base: Annotated[Base, "Number base of the id in a receipt's text"] = "text"
    tlv_id_base: Annotated[Base | None, "Number base of the id in a receipt's TLV; empty: as in the text"] = None
    final_states: Annotated[
        dict[str, ReceiptState], "stat → its meaning here: ACCEPTD → delivered; case does not matter"
    ] = {}
    recipient_errors: RecipientErrors = ()
    handles_stop: HandlesStop = False
    country: Country = ""
    inbound_strip: InboundStrip = ""
    inbound_prepend: InboundPrepend = ""
    dlr_sniff: Annotated[bool, "Treat unmarked messages that have all the fields of a receipt as receipts"] = False
    statuses: Annotated[dict[str, str], "command_status (hex) → R, R1, R2, R3, T, P, F, S, C, PS or FC"] = {}

    def __post_init__(self) -> None:
        for field in ("window", "port", "max_timeouts", "receipts_queue"):
            demand(getattr(self, field) >= 1, field, said("must be 1 or more"))
        for field in self.__struct_fields__:
            if field.endswith("_seconds") and field != "validity_seconds":
                demand(getattr(self, field) > 0, field, said("must be more than 0"))
        demand(bool(self.hosts) and all(self.hosts), "host", said("must name a host"))
        demand(self.port <= 65535, "port", said("must be 65535 or less"))
        demand(bool(self.system_id), "system_id", said("must not be empty"))
        demand_numbering(self.country, self.inbound_prepend)
        for field in ("priority", "urgent_priority"):
            demand(0 <= getattr(self, field) <= 3, field, said("must be 0 to 3"))
        demand(self.submits_per_second >= 0, "submits_per_second", said("must not be negative"))
        demand(self.validity_seconds >= 0, "validity_seconds", said("must not be negative"))
        for field in ("protocol_id", "esm_class", "registered_delivery", "data_coding_gsm7", "data_coding_ucs2"):
            demand(0 <= getattr(self, field) <= 255, field, said("must be 0 to 255"))
        for field in ("destination", "international", "alphanumeric", "short_code"):
            demand(
                all(0 <= number <= 255 for number in getattr(self, field)), field, said("must be two numbers, 0 to 255")
            )
        demand(
            self.tls or not (self.tls_ca_file or self.tls_certificate_file), "tls", said("must be on for certificates")
        )
        demand(all(kind in CLASSES for kind in self.statuses.values()), "statuses", said("has an unknown class"))
        demand(all(_HEX.match(key) for key in self.statuses), "statuses", said("must name codes in hex"))
        demand(all(_HEX.match(key) for key in self.vendor_tlvs), "vendor_tlvs", said("must name tags in hex"))
        demand(_is_name(self.tls_server_name), "tls_server_name", said("must be a host name"))
        shifts = bool(self.single_shift or self.locking_shift)
        demand(
            not shifts or self.default_alphabet == "gsm", "default_alphabet", said("must be gsm for national tables")
        )
        tables = [IDENTIFIERS[language] in LOCKING for language in self.locking_shift]
        demand(all(tables), "locking_shift", said("names a language that has no such table"))
        try:
            encoded = self.tlvs
        except ValueError:
            encoded = {0x10000: b""}
        demand(
            all(tag <= 0xFFFF for tag in encoded), "vendor_tlvs", said("has a tag or a value that cannot be encoded")
        )

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts to try."""
        return (self.host,) if isinstance(self.host, str) else self.host

    @property
    def status_classes(self) -> dict[int, str]:
        """`statuses` with numbers as keys."""
        return {int(key, 16): kind for key, kind in self.statuses.items()}

    @property
    def tlvs(self) -> dict[int, bytes]:
        """`vendor_tlvs` as sent on the wire."""
        return {
            int(tag, 16): bytes.fromhex(value[4:]) if value.startswith("hex:") else value.encode("latin-1")
            for tag, value in self.vendor_tlvs.items()
        }


def settings_from(values: Mapping[str, Any]) -> SmppSettings:
    """The settings as stored with a supplier. Raises SettingsError, which names the field."""
    return checked(SmppSettings, values)


def _is_name(name: str) -> bool:
    """Whether TLS takes it, or it is empty."""
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return not re.search(r"^\.|[\s\0]", name)


_HEX = re.compile(r"(0x)?[0-9a-f]{1,8}\Z", re.I)
