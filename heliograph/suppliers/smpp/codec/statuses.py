"""command_status: each code's name and class, and what the class means for a message (SMPP 3.4 §5.1.3, and 5.0).

    R    retry later at this supplier; R1, R2: once, twice, then F
    T    throttled: slow down the account; the message loses none of its tries
    P    permanently refused
    F    refused here, another supplier may be tried once
    S    the session is at fault: bind again; the message loses none of its tries
    C    account configuration: alarm, and the message may go elsewhere. While the account itself is refused (its
         system_id, password or system_type, or a code that its operator put into this class: no credit), no message
         is taken: it goes elsewhere, or waits for an operator

The rule nobody may break: an unknown code is tried once more and then sent elsewhere, never treated as success.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from heliograph.base.sentences import Sentence, said
from heliograph.suppliers.contract import Scope, Verdict

#: code → (name without ESME_, class). C0–C4 have their names from 3.4.
STATUSES: dict[int, tuple[str, str]] = {
    0x00: ("ROK", ""),
    0x01: ("RINVMSGLEN", "P"),
    0x02: ("RINVCMDLEN", "PS"),
    0x03: ("RINVCMDID", "C"),
    0x04: ("RINVBNDSTS", "S"),
    0x05: ("RALYBND", "S"),
    0x06: ("RINVPRTFLG", "C"),
    0x07: ("RINVREGDLVFLG", "C"),
    0x08: ("RSYSERR", "R"),
    0x0A: ("RINVSRCADR", "FC"),
    0x0B: ("RINVDSTADR", "F"),
    0x0C: ("RINVMSGID", "P"),
    0x0D: ("RBINDFAIL", "S"),
    0x0E: ("RINVPASWD", "C"),
    0x0F: ("RINVSYSID", "C"),
    0x11: ("RCANCELFAIL", "P"),
    0x13: ("RREPLACEFAIL", "P"),
    0x14: ("RMSGQFUL", "T"),
    0x15: ("RINVSERTYP", "C"),
    0x33: ("RINVNUMDESTS", "P"),
    0x34: ("RINVDLNAME", "P"),
    0x40: ("RINVDESTFLAG", "P"),
    0x42: ("RINVSUBREP", "C"),
    0x43: ("RINVESMCLASS", "C"),
    0x44: ("RCNTSUBDL", "P"),
    0x45: ("RSUBMITFAIL", "R1"),  # many use only this, even for blocked content and lack of credit
    0x48: ("RINVSRCTON", "C"),
    0x49: ("RINVSRCNPI", "C"),
    0x50: ("RINVDSTTON", "C"),
    0x51: ("RINVDSTNPI", "C"),
    0x53: ("RINVSYSTYP", "C"),
    0x54: ("RINVREPFLAG", "C"),
    0x55: ("RINVNUMMSGS", "P"),
    0x58: ("RTHROTTLED", "T"),
    0x61: ("RINVSCHED", "C"),
    0x62: ("RINVEXPIRY", "C"),
    0x63: ("RINVDFTMSGID", "P"),
    0x64: ("RX_T_APPN", "R"),
    0x65: ("RX_P_APPN", "P"),
    0x66: ("RX_R_APPN", "P"),
    0x67: ("RQUERYFAIL", "P"),
    0xC0: ("RINVOPTPARSTREAM", "C"),
    0xC1: ("ROPTPARNOTALLWD", "C"),
    0xC2: ("RINVPARLEN", "C"),
    0xC3: ("RMISSINGOPTPARAM", "C"),
    0xC4: ("RINVOPTPARAMVAL", "C"),
    0xFE: ("RDELIVERYFAILURE", "F"),
    0xFF: ("RUNKNOWNERR", "R2"),
    0x100: ("RSERTYPUNAUTH", "C"),
    0x101: ("RPROHIBITED", "C"),
    0x102: ("RSERTYPUNAVAIL", "R"),
    0x103: ("RSERTYPDENIED", "C"),
    0x104: ("RINVDCS", "P"),
    0x105: ("RINVSRCADDRSUBUNIT", "C"),
    0x106: ("RINVDSTADDRSUBUNIT", "C"),
    0x107: ("RINVBCASTFREQINT", "P"),
    0x108: ("RINVBCASTALIAS_NAME", "P"),
    0x109: ("RINVBCASTAREAFMT", "P"),
    0x10A: ("RINVNUMBCAST_AREAS", "P"),
    0x10B: ("RINVBCASTCNTTYPE", "P"),
    0x10C: ("RINVBCASTMSGCLASS", "P"),
    0x10D: ("RBCASTFAIL", "P"),
    0x10E: ("RBCASTQUERYFAIL", "P"),
    0x10F: ("RBCASTCANCELFAIL", "P"),
    0x110: ("RINVBCAST_REP", "P"),
    0x111: ("RINVBCASTSRVGRP", "P"),
    0x112: ("RINVBCASTCHANIND", "P"),
}

CLASSES = frozenset({"R", "R1", "R2", "R3", "T", "P", "F", "S", "C", "PS", "FC"})
#: Refusals of the whole account, mostly of its bind, which need an operator: wrong password, system_id or system_type.
ACCOUNT_REFUSED = frozenset({0x0E, 0x0F, 0x53})

_VENDOR = range(0x400, 0x500)
#: Codes of class C that depend on the sender, and on a message's validity.
_OF_SENDER = frozenset({0x0A, 0x48, 0x49, 0x105})
_OF_MESSAGE = frozenset({0x62})


class Ruling(msgspec.Struct, frozen=True, gc=False):
    """The meaning of a status: the fields of an Outcome, and what the connector has to do in addition."""

    verdict: Verdict
    code: str
    detail: str
    failover: bool = False
    counts: bool = True
    alarm: bool = False
    #: Slow down the account.
    slow: bool = False
    #: The session is no longer usable.
    rebind: bool = False
    scope: Scope = Scope.ACCOUNT


def classify(status: int, *, attempt: int = 1, overrides: Mapping[int, str] | None = None) -> Ruling:
    """What a command_status other than 0 means for a message on its `attempt`, counted from 1.

    `overrides`: the supplier's own map of code → class. R1 and R2 depend on the attempt's number, so a message tried
    before for another reason gets fewer retries, never more.
    """
    name = name_of(status)
    kind = (overrides or {}).get(status) or STATUSES.get(status, ("", "R1"))[1]
    code = f"0x{status:08X}"
    is_own = status in (overrides or {})
    unmapped = status in _VENDOR and not is_own
    if kind[0] == "R" and (len(kind) == 1 or attempt <= int(kind[1])):
        # A status that is retried once or twice and then counts as a refusal may be about anything.
        scope = Scope.ACCOUNT if len(kind) == 1 else Scope.SENDER
        return Ruling(Verdict.BUSY, code, name, alarm=unmapped, scope=scope)
    if kind == "T":
        return Ruling(Verdict.BUSY, code, name, counts=False, slow=True)
    if kind == "S":
        return Ruling(Verdict.BUSY, code, name, counts=False, rebind=True)
    scope = _scope(status, kind)
    if kind == "C" and (status in ACCOUNT_REFUSED or (is_own and scope is Scope.ACCOUNT)):
        return Ruling(Verdict.UNREACHABLE, code, name, counts=False, alarm=True)
    return Ruling(
        Verdict.REFUSED,
        code,
        name,
        failover=kind[0] in "RFC",
        alarm="C" in kind or unmapped,
        rebind="S" in kind,
        scope=scope,
    )


def _scope(status: int, kind: str) -> Scope:
    """What a refusal concerns."""
    if status in _OF_MESSAGE or (kind[0] in "PF" and kind != "FC"):
        return Scope.MESSAGE
    if status in _OF_SENDER or kind == "FC" or kind[0] == "R":
        return Scope.SENDER
    return Scope.ACCOUNT


def name_of(status: int) -> str:
    """`ESME_RTHROTTLED`; "vendor specific" or "unknown status" for codes without a name."""
    if status in STATUSES:
        return "ESME_" + STATUSES[status][0]
    return "vendor specific" if status in _VENDOR else "unknown status"


def bind_refused(status: int, wait: float) -> Sentence:
    """Why a bind was refused and, if the configuration is at fault, how often it is retried. `wait`: seconds between
    two binds."""
    name = f"0x{status:08X} {name_of(status)}"
    if status not in ACCOUNT_REFUSED:
        return said("bind refused: %(status)s", status=name)
    return said("bind refused: %(status)s; retried every %(seconds)s s", status=name, seconds=round(wait))
