"""The compiled rules: which sender a supplier shows, and how a number is written for it. Pure.

Among a supplier's rules for senders the most specific one applies: by country first, then by sender, then by kind of
sender. Among its rules for numbers, the one with the longest prefix applies.

The rule nobody may break: the same message and rules give the same answer, on every worker and at every try.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal
from uuid import UUID

import msgspec

from heliograph.base import phones

#: What a supplier does with a sender: carry it, replace it, refuse it, or carry it once registered.
Action = Literal["allow", "replace", "refuse", "register"]
ACTIONS: tuple[Action, ...] = ("allow", "replace", "refuse", "register")
Kind = Literal["alphanumeric", "numeric"]
#: States of a sender's registration.
STATES = ("asked", "pending", "registered", "refused")
#: Placeholders, one of each kind, that no organization can have as a sender.
STAND_INS: Mapping[Kind, str] = {"alphanumeric": "(a name)", "numeric": "0" * 24}
#: How many answers are memoized per supplier.
MEMO = 5_000


class SenderRule(msgspec.Struct, frozen=True, kw_only=True):
    """What a supplier does with certain senders. A condition of None matches anything."""

    id: UUID
    supplier_id: UUID
    #: ISO region of the calling code.
    country: str | None = None
    #: Case does not matter.
    sender: str | None = None
    kind: Kind | None = None
    action: Action
    #: The sender used instead; for `register`, until the sender is registered (None: the message is not sent).
    replacement: str | None = None
    note: str = ""


class Registration(msgspec.Struct, frozen=True):
    """The state of the registration of an organization's sender in a country."""

    organization_id: UUID
    sender: str
    country: str
    #: MCC-MNC; empty: the whole country.
    network: str
    #: None: with any supplier.
    supplier_id: UUID | None
    state: str


class NumberRule(msgspec.Struct, frozen=True, kw_only=True):
    """The format that a supplier expects for numbers that begin with `prefix` (E.164 digits; empty: all)."""

    id: UUID
    supplier_id: UUID
    prefix: str = ""
    #: Removed from the front; a number that begins differently is unchanged.
    strip: str = ""
    prepend: str = ""
    #: TON and NPI (SMPP 3.4 §5.2.5, §5.2.6) of recipient and sender; None: those of the account.
    numbering: tuple[int, int] | None = None
    sender_numbering: tuple[int, int] | None = None
    note: str = ""

    def written(self, digits: str) -> str:
        """A number (E.164 digits) in the supplier's format."""
        if not digits.startswith(self.strip):
            return digits
        return self.prepend + digits[len(self.strip) :]


class _Own:
    """The rules of one supplier, and its memo of answers."""

    __slots__ = ("ends", "memo", "prefixes", "rules")

    def __init__(self) -> None:
        #: Most specific first.
        self.rules: list[SenderRule] = []
        self.prefixes: dict[str, NumberRule] = {}
        #: Lengths of prefixes, including the `+`, longest first.
        self.ends: list[int] = []
        #: Keyed by the digits that identify the country, the sender, and the organization and network that its
        #: registration depends on.
        self.memo: dict[tuple[str, str] | tuple[str, str, UUID, str], str | None] = {}


class Book:
    """All rules. Immutable except for its memo."""

    def __init__(
        self,
        rules: Iterable[SenderRule] = (),
        registrations: Iterable[Registration] = (),
        numbers: Iterable[NumberRule] = (),
        owners: Mapping[str, tuple[UUID, ...]] | None = None,
    ) -> None:
        """`owners`: by number that we send from (digits), the suppliers that deliver handsets' messages to it."""
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
        #: Senders with a registration, whichever organization's.
        self._registered = {sender for _, sender in self._registrations}
        # Operators say with such a rule that a number has moved to another supplier, before anything came in there.
        left = {
            (rule.supplier_id, rule.sender.removeprefix("+"))
            for rule in ordered
            if rule.action == "refuse" and rule.sender is not None and rule.country is None
        }
        #: A refused registration takes effect even without a rule.
        self._is_refused = any(one.state == "refused" for some in self._registrations.values() for one in some)
        self._owners = {
            sender: tuple(id for id in some if (id, sender) not in left) for sender, some in (owners or {}).items()
        }
        #: Senders that a rule names.
        self._named = {rule.sender.casefold() for rule in ordered if rule.sender is not None}
        #: ISO regions that rules for senders name.
        self.countries = frozenset(rule.country for rule in ordered if rule.country is not None)
        #: True if any sender could be replaced or refused.
        self.judges = bool(ordered) or self._is_refused

    def alike(self, organization_id: UUID, sender: str) -> tuple[UUID | None, str]:
        """A canonical (organization, sender) pair that is treated identically; organization None: any. There are only
        as many pairs as distinct cases."""
        spelled = sender.casefold()
        if (organization_id, spelled) in self._registrations:
            return organization_id, sender
        if spelled in self._named or self.owners(sender):
            return None, sender
        return None, STAND_INS[_kind(sender)]

    def owners(self, sender: str) -> tuple[UUID, ...]:
        """The suppliers that the number belongs to, without those that refuse it everywhere; empty: it is a name, or
        its owner is not known."""
        return self._owners.get(sender.removeprefix("+"), ()) if self._owners else ()

    def spoken(
        self, supplier_id: UUID, recipient: str, *, organization_id: UUID, sender: str, network: str = ""
    ) -> str | None:
        """The sender that this supplier shows to a number (E.164) for an organization's `sender`; None: it does not
        carry the message. `network`: MCC-MNC; empty: not known."""
        if not self.judges:
            return sender
        own = self._own.get(supplier_id)
        if own is None:
            if not self._is_refused:
                return sender
            own = self._own[supplier_id]
        # Three digits identify the country: calling codes are prefix-free.
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
        """A supplier's rule for `sender` in a country; None if there is none."""
        own = self._own.get(supplier_id)
        return None if own is None else _first(own.rules, country, sender)

    def address(self, supplier_id: UUID, recipient: str) -> NumberRule | None:
        """The rule by which a number (E.164) is written for this supplier; None: unchanged."""
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
        """The state of a sender's registration: one of STATES, or None if none was requested. An entry for a supplier
        precedes one for all, and one for a network precedes one for its country. If the network is not known and there
        is no entry for the country, the sender is registered if it is registered in all networks that have entries."""
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
