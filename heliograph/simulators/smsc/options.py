"""What the SMSC simulator does with a message: its options, and the fate of each submit.

A person chooses a fate by number: the last four digits (`MAGIC`) of a recipient with a prefix that is no country's
code. Everything else follows the shares in the options and the seed. The rule nobody may break: an option's default is
what a well-behaved SMSC does, whatever number a customer has.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Annotated, Literal, TypeVar

import msgspec

from heliograph.simulators.options import demand_possible

IdForm = Literal["text", "dec", "hex"]
Value = TypeVar("Value")

#: Largest command_status, and longest id (SMPP 3.4 §3.1).
MOST_STATUS, LONGEST_ID = 0xFFFF_FFFF, 64


class SmscOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of one simulator. Shares are between 0 and 1, times are seconds."""

    host: Annotated[str, "Address to listen on"] = "127.0.0.1"
    port: Annotated[int, "Port to listen on; 0: any free one"] = 2775
    shared: Annotated[bool, "Other processes of this user may bind the address too, such as one that reserves it"] = (
        False
    )
    tls_certificate: Annotated[str, "PEM file of the certificate chain; empty: no TLS"] = ""
    tls_key: Annotated[str, "PEM file of the certificate's key; empty: it is in the certificate's file"] = ""
    systems: Annotated[Mapping[str, str], "system_id: password of those who may bind"] = msgspec.field(
        default_factory=lambda: {"heliograph": "secret"}
    )
    max_binds: Annotated[int, "Sessions per system_id; beyond: 0x05. 0: unlimited"] = 0
    bind_status: Annotated[int, "Answer every bind with this command_status; 0: check the password"] = 0
    enquire: Annotated[float, "Send enquire_link after this long without a PDU; 0: never"] = 0.0
    seed: Annotated[int | None, "Seed of random choices"] = None
    magic: Annotated[
        str,
        "For recipients that begin with this prefix, the last four digits (0000 to 0013) choose the outcome (888 is no"
        " country's code); empty: for none",
    ] = "888"

    latency: Annotated[float, "Delay before a submit is answered"] = 0.0
    throughput: Annotated[float, "Submits per second and system_id; beyond: 0x58. 0: unlimited"] = 0.0
    error_mix: Annotated[Mapping[int, float], "command_status: share of submits refused with it"] = msgspec.field(
        default_factory=dict
    )
    swallow: Annotated[float, "Share of submits accepted and never answered"] = 0.0
    drop_after: Annotated[int, "Close a connection after every n submits, the last one unanswered; 0: never"] = 0
    unbind_after: Annotated[int, "Send unbind after a connection's n-th submit; 0: never"] = 0
    deaf: Annotated[bool, "Read and answer nothing but binds, as behind a broken firewall"] = False

    receipts: Annotated[bool, "Send requested receipts"] = True
    receipt_delay: Annotated[float, "Delay from the response to the receipt"] = 0.0
    receipt_mix: Annotated[Mapping[str, float], "`stat` of receipts: share; the rest is DELIVRD"] = msgspec.field(
        default_factory=dict
    )
    missing: Annotated[float, "Share of messages without a receipt"] = 0.0
    duplicates: Annotated[float, "Share of receipts sent twice"] = 0.0
    early: Annotated[float, "Share of receipts sent before the response to the submit"] = 0.0
    interim: Annotated[float, "Share of messages with an additional ACCEPTD receipt before the final one"] = 0.0
    parts: Annotated[
        Literal["all", "first", "last", "summary"],
        "Receipts of a long message: each segment's, the first's, the last's, or one for all (`sub:003 dlvrd:003`)",
    ] = "all"
    form: Annotated[Literal["both", "text", "tlv"], "Where a receipt has its id and state: text, TLVs or both"] = "both"
    by: Annotated[Literal["deliver_sm", "data_sm"], "The PDU that brings receipts"] = "deliver_sm"
    other_bind: Annotated[bool, "Send receipts on another session than the submit's, where there is one"] = False
    echo_reference: Annotated[bool, "Repeat user_message_reference in the receipt"] = False
    redeliver_after: Annotated[float, "Repeat receipts not acknowledged with status 0 within this time"] = 30.0
    window: Annotated[int, "Unacknowledged receipts per session; 0: unlimited"] = 10_000

    resp_base: Annotated[IdForm, "How an id is written in submit_sm_resp"] = "dec"
    dlr_base: Annotated[IdForm, "How it is written in the receipt; `text` there wants `text` here"] = "dec"
    resp_padding: Annotated[int, "Zeros up to this width, in submit_sm_resp"] = 0
    dlr_padding: Annotated[int, "Zeros up to this width, in the receipt"] = 0
    dlr_upper: Annotated[bool, "Capital letters in the receipt's id"] = False
    constant_id: Annotated[str, "Every message gets this id; empty: its own"] = ""
    empty_id: Annotated[bool, "submit_sm_resp has no id, and neither has the receipt"] = False

    keep: Annotated[int, "Number of submits kept for inspection; 0: none"] = 0
    count_destinations: Annotated[bool, "Count submits by destination"] = False
    ledger: Annotated[str, "File to which a line is appended for each submit; empty: none"] = ""


class Fate(msgspec.Struct, frozen=True, gc=False):
    """The outcome of one submit."""

    #: command_status of the response; nothing follows if it is not 0.
    status: int = 0
    #: `stat` of the receipt; empty means no receipt.
    stat: str = "DELIVRD"
    answered: bool = True
    early: bool = False
    twice: bool = False
    interim: bool = False
    #: The connection closes instead of a response.
    dropped: bool = False
    #: Seconds added to the usual delay of receipts.
    wait: float = 0.0


DELIVERED = Fate()
#: The last four digits of a recipient that begins with the option `magic`, and the fate they select.
MAGIC: dict[bytes, Fate] = {
    b"0000": DELIVERED,
    b"0001": Fate(stat="UNDELIV"),
    b"0002": Fate(stat="REJECTD"),
    b"0003": Fate(stat="EXPIRED"),
    b"0004": Fate(stat=""),  # no receipt
    b"0005": Fate(wait=60.0),
    b"0006": Fate(twice=True),
    b"0007": Fate(early=True),  # the receipt comes before the response
    b"0008": Fate(status=0x0B),  # refused: invalid destination
    b"0009": Fate(status=0x58),  # throttled, every time
    b"0010": Fate(status=0x08),  # system error, every time
    b"0011": Fate(answered=False),  # no response, but a receipt
    b"0012": Fate(answered=False, stat=""),  # neither
    b"0013": Fate(dropped=True),  # the connection closes before the response; a receipt follows
}


def checked(options: SmscOptions) -> SmscOptions:
    """The same options. Raises ValueError for impossible values, which would otherwise cut connections."""
    shares = ("swallow", "missing", "duplicates", "early", "interim")
    demand_possible(options, shares=shares, below_zero=("seed",))
    for mix in (options.error_mix, options.receipt_mix):
        if not all(0 <= share <= 1 for share in mix.values()):
            raise ValueError("a share of a mix is not between 0 and 1")
    if not all(0 <= status <= MOST_STATUS for status in (*options.error_mix, options.bind_status)):
        raise ValueError(f"a command_status is not between 0 and {MOST_STATUS:#x}")
    for text in (options.constant_id, *options.receipt_mix):
        if not text.isascii() or len(text) > LONGEST_ID:
            raise ValueError(f"{text!r} is not ASCII of at most {LONGEST_ID} characters")
    if max(options.resp_padding, options.dlr_padding) > LONGEST_ID:
        raise ValueError(f"an id has at most {LONGEST_ID} characters")
    return options


def fates(options: SmscOptions) -> Callable[[bytes], Fate]:
    """A function that maps a recipient's digits to the fate of a submit. Raises ValueError for shares above 1."""
    for mix in (options.error_mix, options.receipt_mix):
        if sum(mix.values()) > 1.000001:
            raise ValueError("the shares of a mix add up to more than 1")
    magic = MAGIC if options.magic else {}
    prefix = options.magic.encode()
    if not (
        options.error_mix
        or options.receipt_mix
        or options.swallow
        or options.missing
        or options.duplicates
        or options.early
        or options.interim
    ):
        return lambda digits: magic.get(digits[-4:], DELIVERED) if digits.startswith(prefix) else DELIVERED

    chance = random.Random(options.seed).random

    def rolled(digits: bytes) -> Fate:
        chosen = magic.get(digits[-4:]) if digits.startswith(prefix) else None
        if chosen is not None:
            return chosen
        status = _pick(options.error_mix, chance(), 0)
        if status:
            return Fate(status=status)
        return Fate(
            stat="" if chance() < options.missing else _pick(options.receipt_mix, chance(), "DELIVRD"),
            answered=chance() >= options.swallow,
            early=chance() < options.early,
            twice=chance() < options.duplicates,
            interim=chance() < options.interim,
        )

    return rolled


def _pick(mix: Mapping[Value, float], point: float, otherwise: Value) -> Value:
    for value, share in mix.items():
        if point < share:
            return value
        point -= share
    return otherwise
