"""The state of Meta's side: apps, accounts (WABAs), numbers, templates, tokens, users, and the messages sent to them.

The rule nobody may break: this is the truth, and the truth changes at once. What GETs show may lag behind it, which
`change` and `view` take care of; sends are always judged by the truth.
"""

from __future__ import annotations

import base64
import hashlib
import random
import re
from collections import OrderedDict, deque
from typing import Any, TypeVar

import msgspec

from heliograph.base import phones
from heliograph.simulators.clock import VirtualClock
from heliograph.simulators.graph import demo
from heliograph.simulators.graph.callbacks.scripts import Scripts
from heliograph.simulators.graph.objects import (
    App,
    Counters,
    Message,
    Number,
    SentMessage,
    Setup,
    SimulatedAccount,
    Template,
    Token,
    User,
)
from heliograph.simulators.graph.operations.limits import Bucket, Daily, Hourly
from heliograph.simulators.graph.options import GraphOptions

Thing = TypeVar("Thing", SimulatedAccount, Number, Template)

WINDOW_SECONDS = 86_400
ENTRY_POINT_SECONDS = 72 * 3600
#: 1000 messages a second instead of 80.
HIGH_FACTOR = 12.5
#: For a number also used in the Business app: 20 messages a second instead of 80.
COEXISTENCE_FACTOR = 0.25
#: How many media of users are remembered.
MEDIA = 1_000


class World:
    """Everything that `reset` recreates."""

    def __init__(self, options: GraphOptions, setup: Setup | None, clock: VirtualClock) -> None:
        self.options = options
        self.clock = clock
        self.random = random.Random(options.seed)
        self.scripts = Scripts(options)
        self.counters = Counters()
        self.apps: dict[str, App] = {}
        self.accounts: dict[str, SimulatedAccount] = {}
        self.numbers: dict[str, Number] = {}
        self.templates: dict[str, Template] = {}
        self.tokens: dict[str, Token] = {}
        self.users: dict[str, User] = {}
        # An OrderedDict, because finding the oldest item of a plain dict gets slower as items before it are deleted.
        self.messages: OrderedDict[str, Message] = OrderedDict()
        #: (account, name, language) → template.
        self.by_name: dict[tuple[str, str, str], Template] = {}
        #: (number id, user's key) → until when the service window is open.
        self.windows: dict[tuple[str, str], float] = {}
        #: (number id, user's key) → until when everything is free; if negative, since when it awaits a reply.
        self.entry_points: dict[tuple[str, str], float] = {}
        #: (number id, month) → number of service messages, for the free tier.
        self.served: dict[tuple[str, int], int] = {}
        #: biz_opaque_callback_data → how many messages were accepted with it.
        self.trackers: dict[str, int] = {}
        #: Ids of the media that users sent last.
        self.media: deque[str] = deque(maxlen=MEDIA)
        self.requests: deque[SentMessage] = deque(maxlen=options.keep_requests)
        self.buckets: dict[str, Bucket] = {}
        self.pairs: dict[tuple[str, str], Bucket] = {}
        self.daily: dict[str, Daily] = {}
        self.hourly: dict[str, Hourly] = {}
        #: (account, name) of deleted templates → until when the name is taken.
        self.blocked_names: dict[tuple[str, str], float] = {}
        self._shown: dict[str, dict[str, Any]] = {}
        self._ids = 1_200_000_000_000_000
        given = demo.setup(options) if setup is None else setup
        # A copy, so that two simulators started from the same setup share no state.
        given = msgspec.convert(msgspec.to_builtins(given), Setup)
        for app in given.apps:
            self.apps[app.id] = app
        for account in given.accounts:
            self.accounts[account.id] = account
        for number in given.numbers:
            self.numbers[number.id] = number
        for token in given.tokens:
            self.tokens[token.token] = token
        named = {one.account for one in given.numbers} | {one.account for one in given.templates if one.account}
        strays = named - self.accounts.keys()
        if strays:
            raise ValueError(f"no account {', '.join(sorted(strays))}")
        for template in given.templates:
            self.add_template(template)

    def new_id(self) -> str:
        """An id like Meta's: digits, sometimes too large for a float."""
        self._ids += self.random.randrange(1, 1000)
        return str(self._ids)

    def add_template(self, template: Template) -> Template:
        if not template.id:
            template.id = self.new_id()
        if not template.account:
            template.account = next(iter(self.accounts), "")
        self.templates[template.id] = template
        self.by_name[template.account, template.name, template.language] = template
        return template

    def drop_template(self, template: Template) -> None:
        self.templates.pop(template.id, None)
        self.by_name.pop((template.account, template.name, template.language), None)

    def number_of(self, wanted: str) -> Number:
        """The number with this Graph id or these digits; empty means the first. Raises KeyError."""
        if not wanted:
            return next(iter(self.numbers.values()))
        if wanted in self.numbers:
            return self.numbers[wanted]
        digits = only_digits(wanted)
        for number in self.numbers.values():
            if number.digits == digits:
                return number
        raise KeyError(f"no number {wanted}")

    def account_of(self, wanted: str) -> SimulatedAccount:
        """The account with this id; empty means the first. Raises KeyError."""
        if not wanted:
            return next(iter(self.accounts.values()))
        if wanted not in self.accounts:
            raise KeyError(f"no account {wanted}")
        return self.accounts[wanted]

    def template_of(self, wanted: str, account: str = "", language: str = "") -> Template:
        """The template with this id or name. Raises KeyError."""
        if wanted in self.templates:
            return self.templates[wanted]
        for template in self.templates.values():
            if template.name == wanted and account in ("", template.account) and language in ("", template.language):
                return template
        raise KeyError(f"no template {wanted}")

    def subscribers(self, account_id: str) -> list[App]:
        """The apps that receive callbacks for an account."""
        account = self.accounts.get(account_id)
        if account is None:
            return list(self.apps.values())
        return [self.apps[one] for one in account.subscribed if one in self.apps]

    # -- users ---------------------------------------------------------------------------------------------------------

    def user(self, digits: str) -> User:
        """The user with this number; everybody is on WhatsApp."""
        wa_id = self._wa_id(digits)
        user = self.users.get(wa_id)
        if user is None:
            bsuid = ""
            if self.options.user_ids:
                seed = hashlib.blake2b(wa_id.encode(), digest_size=8, key=str(self.options.seed).encode()).digest()
                bsuid = f"{_country(wa_id)}.{int.from_bytes(seed) % 10**20:020}"
            user = self.users[wa_id] = User(wa_id=wa_id, user_id=bsuid)
        return user

    def user_by_id(self, user_id: str) -> User | None:
        """The user with this business-scoped id, if known to the business."""
        known = self.users.get(user_id)
        return known or next((user for user in self.users.values() if user.user_id == user_id), None)

    def window_open(self, number_id: str, user: User) -> bool:
        return self.windows.get((number_id, user.key), 0.0) > self.clock.now()

    def open_window(self, number_id: str, user: User, at: float) -> None:
        """The user wrote at this time. An old message does not shorten the window; a future one does not extend it
        further."""
        key = (number_id, user.key)
        until = min(at, self.clock.now()) + WINDOW_SECONDS
        self.windows[key] = max(self.windows.get(key, 0.0), until)

    def _wa_id(self, digits: str) -> str:
        if self.options.rewrite_wa_ids:
            if len(digits) == 13 and digits.startswith("55") and digits[4] == "9":
                return digits[:4] + digits[5:]
            if len(digits) == 12 and digits.startswith("52"):
                return "521" + digits[2:]
        return digits

    def take_throughput(self, number: Number) -> bool:
        """Count one message in or out of this number; False if there are too many a second."""
        if not self.options.throughput:
            return True
        now, bucket = self.clock.now(), self.buckets.get(number.id)
        if bucket is None:
            factor = COEXISTENCE_FACTOR if number.is_on_biz_app else HIGH_FACTOR if number.throughput == "HIGH" else 1
            rate = self.options.throughput * factor
            bucket = self.buckets[number.id] = Bucket(rate, rate, now)
        return bucket.take(now)

    # -- messages ------------------------------------------------------------------------------------------------------

    def wamid(self, wa_id: str, *, inbound: bool = False) -> str:
        """An id like Meta's: opaque, but base64 of data with the user's digits and a random part."""
        hexes = 20 if inbound else 18
        chance = f"{self.random.getrandbits(4 * hexes):0{hexes}X}".encode()
        kind = b"\x15\x02\x00\x12\x18\x14" if inbound else b"\x15\x02\x00\x11\x18\x12"
        raw = b"\x1c\x18" + bytes((len(wa_id),)) + wa_id.encode() + kind + chance + b"\x00"
        return "wamid." + base64.b64encode(raw).decode()

    def keep(self, message: Message) -> None:
        """Remember an accepted message; the oldest is forgotten when there are too many."""
        self.counters.accepted += 1
        if message.tracker:
            count = self.trackers[message.tracker] = self.trackers.get(message.tracker, 0) + 1
            if count > 1:
                self.counters.doubled += 1
        message.user.accepted += 1
        if not self.options.keep:
            return
        messages = self.messages
        if len(messages) >= self.options.keep:
            messages.popitem(last=False)
        messages[message.id] = message

    # -- views for GETs ------------------------------------------------------------------------------------------------

    def view(self, thing: Thing) -> dict[str, Any]:
        """The object as GETs show it now: as it was `lag` seconds ago."""
        return self._shown.get(thing.id) or msgspec.to_builtins(thing)

    def change(self, thing: Thing, **values: Any) -> None:
        """Change the truth now, and what GETs show after the lag."""
        lag = self.options.lag
        if lag > 0:
            self._shown.setdefault(thing.id, msgspec.to_builtins(thing))
        for name, value in values.items():
            setattr(thing, name, value)
        if lag > 0:
            self.clock.put(lag, self._catch_up, thing, msgspec.to_builtins(thing))

    def _catch_up(self, thing: Thing, seen: dict[str, Any]) -> None:
        if seen == msgspec.to_builtins(thing):
            self._shown.pop(thing.id, None)
        else:
            self._shown[thing.id] = seen


def only_digits(text: str) -> str:
    """A number without everything that is not a digit."""
    return re.sub(r"\D", "", text)


def _country(digits: str) -> str:
    for end in (3, 2, 1):
        region = phones.REGIONS.get(digits[:end])
        if region:
            return region if region != "001" else "ZZ"
    return "ZZ"
