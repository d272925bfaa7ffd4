"""The compiled rules: as whom a supplier sends, and how it writes a number. Pure.

Of a supplier's rules for senders the most specific one decides: first by country, then by sender, then by kind of
sender. Of its rules for numbers, the longest prefix does.

The rule nobody may break: the same message and rules give the same answer, on every worker and at every try.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal
from uuid import UUID

import msgspec

from heliograph.base import phones

#: What a supplier does with a sender: carries it, sends as another one, refuses it, or carries it once registered.
Action = Literal["allow", "replace", "refuse", "register"]
ACTIONS: tuple[Action, ...] = ("allow", "replace", "refuse", "register")
Kind = Literal["alphanumeric", "numeric"]
#: How far the registration of a sender is.
STATES = ("asked", "pending", "registered", "refused")
#: Senders that nobody has, one of each kind.
STAND_INS: Mapping[Kind, str] = {"alphanumeric": "(a name)", "numeric": "0" * 24}
#: How many answers are remembered for each supplier.
MEMO = 5_000


class SenderRule(msgspec.Struct, frozen=True, kw_only=True):
    """What a supplier does with some senders. None: whatever it is."""

    id: UUID
    supplier_id: UUID
    #: ISO region, by the calling code.
    country: str | None = None
    #: Case does not matter.
    sender: str | None = None
    kind: Kind | None = None
    action: Action
    #: As whom it sends instead; for `register`, while it is not registered (None: not at all).
    replacement: str | None = None
    note: str = ""


class Registration(msgspec.Struct, frozen=True):
    """That an organization's sender is registered in a country, or how far that is."""

    organization_id: UUID
    sender: str
    country: str
    #: MCC-MNC; empty: all of the country.
    network: str
    #: None: with whichever supplier.
    supplier_id: UUID | None
    state: str


class NumberRule(msgspec.Struct, frozen=True, kw_only=True):
    """How a supplier wants numbers written that begin with `prefix` (E.164 digits; empty: all)."""

    id: UUID
    supplier_id: UUID
    prefix: str = ""
    #: Taken away from the front; a number that begins otherwise stays as it is.
    strip: str = ""
    prepend: str = ""
    #: TON and NPI (SMPP 3.4 §5.2.5, §5.2.6) of the recipient and of the sender; None: the account's.
    numbering: tuple[int, int] | None = None
    sender_numbering: tuple[int, int] | None = None
    note: str = ""

    def written(self, digits: str) -> str:
        """A number (E.164 digits) as the supplier wants it."""
        if not digits.startswith(self.strip):
            return digits
        return self.prepend + digits[len(self.strip) :]


class _Own:
    """The rules of one supplier, and the answers that were given."""

    __slots__ = ("ends", "memo", "prefixes", "rules")

    def __init__(self) -> None:
        #: The most specific ones first.
        self.rules: list[SenderRule] = []
        self.prefixes: dict[str, NumberRule] = {}
        #: Where a number is cut, its `+` included, longest first.
        self.ends: list[int] = []
        #: By the digits that tell the country, the sender, and what else its registration asks for.
        self.memo: dict[tuple[str, str] | tuple[str, str, UUID, str], str | None] = {}


class Book:
    """All rules. Immutable but for what it remembers."""

    def __init__(
        self,
        rules: Iterable[SenderRule] = (),
        registrations: Iterable[Registration] = (),
        numbers: Iterable[NumberRule] = (),
        owners: Mapping[str, tuple[UUID, ...]] | None = None,
    ) -> None:
        """`owners`: by number that we send from (digits), the suppliers by which handsets' messages to it come in."""
        self._own: defaultdict[UUID, _Own] = defaultdict(_Own)
        ordered = sorted(rules, key=_specific)
        for rule in ordered:
            self._own[rule.supplier_id].rules.append(rule)
        for number in numbers:
            self._own[number.supplier_id].prefixes[number.prefix] = number
        for own in self._own.values():
            own.ends = sorted({len(prefix) + 1 for prefix in own.prefixes}, reverse=True)
        self._registrations: dict[tuple[UUID, str], list[Registration]] = defaultdict(list)
        for one in registrations:
            self._registrations[one.organization_id, one.sender.casefold()].append(one)
        #: Of whom anything is registered, whosever they are.
        self._registered = {sender for _, sender in self._registrations}
        #: A registration that was refused counts without a rule.
        self._is_refused = any(one.state == "refused" for some in self._registrations.values() for one in some)
        self._owners = dict(owners or {})
        #: Senders that a rule names.
        self._named = {rule.sender.casefold() for rule in ordered if rule.sender is not None}
        #: ISO regions that rules for senders name.
        self.countries = frozenset(rule.country for rule in ordered if rule.country is not None)
        #: Whether any sender may be replaced or refused.
        self.judges = bool(ordered) or self._is_refused

    def alike(self, organization_id: UUID, sender: str) -> tuple[UUID | None, str]:
        """An organization (None: whichever) and a sender that are treated as these are; as few of them as there are
        different cases."""
        spelled = sender.casefold()
        if (organization_id, spelled) in self._registrations:
            return organization_id, sender
        if spelled in self._named or self.owners(sender):
            return None, sender
        return None, STAND_INS[_kind(sender)]

    def owners(self, sender: str) -> tuple[UUID, ...]:
        """The suppliers that the number belongs to; empty: it is a name, or nobody's that is known."""
        return self._owners.get(sender.removeprefix("+"), ()) if self._owners else ()

    def spoken(
        self, supplier_id: UUID, recipient: str, *, organization_id: UUID, sender: str, network: str = ""
    ) -> str | None:
        """As whom this supplier sends to a number (E.164) what an organization sends as `sender`; None: not at all.
        `network`: MCC-MNC; empty: not known."""
        if not self.judges:
            return sender
        own = self._own.get(supplier_id)
        if own is None:
            if not self._is_refused:
                return sender
            own = self._own[supplier_id]
        # Three digits tell the country: calling codes are prefix-free.
        key: tuple[str, str] | tuple[str, str, UUID, str] = recipient[1:4], sender
        if self._registered and sender.casefold() in self._registered:
            key = (*key, organization_id, network)
        try:
            return own.memo[key]
        except KeyError:
            if len(own.memo) >= MEMO:
                own.memo.clear()
            answer = self._judge(own.rules, supplier_id, phones.country(recipient), organization_id, sender, network)
            own.memo[key] = answer
            return answer

    def rule(self, supplier_id: UUID, country: str, sender: str) -> SenderRule | None:
        """The rule that decides as whom a supplier sends what is sent as `sender` to a country; None: there is none."""
        own = self._own.get(supplier_id)
        return None if own is None else _first(own.rules, country, sender)

    def address(self, supplier_id: UUID, recipient: str) -> NumberRule | None:
        """How this supplier wants a number (E.164) written; None: as it is."""
        own = self._own.get(supplier_id)
        if own is not None:
            for end in own.ends:
                rule = own.prefixes.get(recipient[1:end])
                if rule is not None:
                    return rule
        return None

    def registration(
        self, supplier_id: UUID, country: str, organization_id: UUID, sender: str, network: str
    ) -> str | None:
        """How far a sender is registered: one of STATES, None: nobody asked. What is said of a supplier counts before
        what is said of all, and of a network before what is said of its country. Where the network is not known, and
        nothing is said of the country, it is registered if it is in all networks that are named."""
        found = [
            one
            for one in self._registrations.get((organization_id, sender.casefold()), ())
            if one.country == country and one.supplier_id in (None, supplier_id)
        ]
        for some in ([one for one in found if one.supplier_id], [one for one in found if not one.supplier_id]):
            states = {one.network: one.state for one in some}
            if state := states.get(network) or states.get(""):
                return state
            if states and not network:
                return "registered" if set(states.values()) == {"registered"} else "pending"
        return None

    def _judge(
        self,
        rules: Iterable[SenderRule],
        supplier_id: UUID,
        country: str,
        organization_id: UUID,
        sender: str,
        network: str,
    ) -> str | None:
        state = self.registration(supplier_id, country, organization_id, sender, network)
        rule = _first(rules, country, sender)
        if rule is None:
            return None if state == "refused" else sender
        match rule.action:
            case "replace":
                return rule.replacement
            case "refuse":
                return None
            case "register":
                return sender if state == "registered" else rule.replacement
        return None if state == "refused" else sender


def _first(rules: Iterable[SenderRule], country: str, sender: str) -> SenderRule | None:
    kind = _kind(sender)
    for rule in rules:
        if (
            rule.country in (None, country)
            and rule.kind in (None, kind)
            and (rule.sender is None or rule.sender.casefold() == sender.casefold())
        ):
            return rule
    return None


def _kind(sender: str) -> Kind:
    return "numeric" if sender.removeprefix("+").isdigit() else "alphanumeric"


def _specific(rule: SenderRule) -> tuple[bool, bool, bool, UUID]:
    return rule.country is None, rule.sender is None, rule.kind is None, rule.id
