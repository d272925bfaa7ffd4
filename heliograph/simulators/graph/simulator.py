"""A simulator of Meta's Graph API (WhatsApp Cloud API), for `heliograph up`, `heliograph simulate graph` and tests.

It judges sends in Meta's order, responds as late and as badly as told, gives each message the outcome of its script,
and calls back with signed, batched, repeated and re-sent webhooks, on a clock that can be moved. It shares no code with
the connector: nothing here imports from the WhatsApp package. All random choices follow the seed.

The last four digits of a recipient that begins with 888, which is no country's code, choose its messages' outcome
(`MAGIC` in scripts.py):

    0000 sent, delivered, read          0007 a status before the answer     9004 sent, delivered, never read
    0001 failed, 131026                 0008 refused, 131009                9005 read, delivered, sent: backwards
    0002 sent, read: no delivered       0009 refused, 131056, every time    9006 held for its quality, then happy
    0003 sent, then silence             0010 refused, 131000, every time    9007 held for its quality, then 132015
    0004 silence                        0011 no answer, but it is sent      9008 message_status paused, silence
    0005 statuses 60 s later            0012 no answer, and not sent        9009 … 9012 failed: 131049, 130472,
    0006 each status twice              0013 dropped, but it is sent             131042, 131047
    9001 sent, failed                   9013 price on delivered             9018 HTTP 503 as HTML, not sent
    9002 sent, failed, delivered        9014 price on sent and delivered    9019 HTTP 503 and nothing, not sent
    9003 sent, delivered, failed        9015 no price                       9020 a slow answer, in small pieces
    9016 CBP and conversation           9017 no contacts in statuses        9021 refused once, 130429, then happy
    9022 dropped, and not sent          9023 refused, 130403

    GraphSimulator ── Api (requests) ── World (what Meta knows)
                   └─ Outbox (callbacks of an app) ── VirtualClock

It has over 400 lines because it is the single list of what a test can ask of the simulator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from heliograph.http.client import HttpClient
from heliograph.http.heads import RequestHead
from heliograph.simulators.clock import VirtualClock
from heliograph.simulators.graph.callbacks.events import (
    AccountEvent,
    NumberEvent,
    TemplateEvent,
    account_event,
    number_event,
    template_event,
)
from heliograph.simulators.graph.callbacks.inbound import Inbound, alarm, receive
from heliograph.simulators.graph.callbacks.outbox import RULES, Attempt, Outbox, body_of
from heliograph.simulators.graph.callbacks.scripts import MAGIC, SCRIPTS, Script, Step, script_of
from heliograph.simulators.graph.callbacks.statuses import metadata
from heliograph.simulators.graph.callbacks.webhooks import Item
from heliograph.simulators.graph.control import Control
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
from heliograph.simulators.graph.operations.api import Api, Fault
from heliograph.simulators.graph.operations.request import request_of
from heliograph.simulators.graph.options import GraphOptions, checked, quick
from heliograph.simulators.graph.state import World, only_digits
from heliograph.simulators.http import Coming, HttpSimulator

__all__ = [
    "MAGIC",
    "SCRIPTS",
    "App",
    "Attempt",
    "Counters",
    "Fault",
    "GraphOptions",
    "GraphSimulator",
    "Message",
    "Number",
    "Script",
    "SentMessage",
    "Setup",
    "SimulatedAccount",
    "Step",
    "Template",
    "Token",
    "body_of",
    "quick",
]  # fmt: skip

#: The largest request body, in bytes.
_LARGEST_BODY = 3 * 1_048_576


class GraphSimulator:
    """One simulator. `async with GraphSimulator(quick()) as graph`, or `start` and `stop`.

    It can be stopped and started again on the same port without forgetting anything.
    """

    def __init__(self, options: GraphOptions | None = None, setup: Setup | None = None) -> None:
        """Raises ValueError for impossible options; OSError or ValueError for a bad template file."""
        self._options = self._first = checked(options or GraphOptions())
        self._setup = setup
        #: The port it listens on; 0 before the first start.
        self.port = 0
        self.clock = VirtualClock()
        self._world = World(self._options, setup, self.clock)
        self._outboxes: dict[str, Outbox] = {}
        self._api = Api(self._world, self._outboxes, lambda: self.base_url)
        self._control = Control(self)
        self._http = HttpSimulator(self._handle, body_bytes=_LARGEST_BODY)
        self._client: HttpClient | None = None
        for app in self._world.apps.values():
            self._box(app)

    # -- start and stop ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, and begin the handshakes. Raises OSError if the port is in use."""
        self._client = HttpClient(RULES)
        try:
            await self._listen()
        except OSError:
            await self._client.close()
            raise
        self.clock.open(asyncio.get_running_loop())
        for box in self._outboxes.values():
            box.open(self._client)

    async def stop(self) -> None:
        """Close every connection at once. Undelivered callbacks are kept."""
        self.clock.close()
        for box in self._outboxes.values():
            await box.close()
        if self._client is not None:
            await self._client.close()
            self._client = None
        self.refuse_connections()

    async def __aenter__(self) -> GraphSimulator:
        await self.start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.stop()

    def refuse_connections(self) -> None:
        """Stop listening and cut every connection: new ones are refused until `accept_connections`."""
        self._http.abort()

    async def accept_connections(self) -> None:
        """Listen again, on the same port."""
        if not self._http.is_listening:
            await self._listen()

    def reset(self) -> None:
        """Restore the initial options, setup and real time. Callbacks keep their URL and handshake."""
        self._options = self._first
        self.clock.reset()
        urls = {box.app.id: (box.app.webhook_url, box.app.verify_token) for box in self._outboxes.values()}
        self._world = World(self._options, self._setup, self.clock)
        self._api.reset(self._world)
        for app in self._world.apps.values():
            box = self._box(app)
            if app.id in urls:
                app.webhook_url, app.verify_token = urls[app.id]
            box.app = app
            box.clear()

    @property
    def base_url(self) -> str:
        """The URL of the Graph API, such as `http://127.0.0.1:8090`, to which `/v25.0/…` is appended."""
        return self._options.public_url.rstrip("/") or f"http://{self._options.host}:{self.port}"

    @property
    def options(self) -> GraphOptions:
        """The current options."""
        return self._options

    def configure(self, **changes: Any) -> None:
        """Change options while it runs. Address, seed, ids and the sizes of logs stay fixed. Raises ValueError."""
        try:
            self._options = checked(msgspec.convert(msgspec.to_builtins(self._options) | changes, GraphOptions))
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from None
        self._world.options = self._options
        self._world.buckets.clear()
        self._world.pairs.clear()
        if {"magic", "default_script"} & changes.keys():
            self._world.scripts.configure(self._options)

    # -- objects -------------------------------------------------------------------------------------------------------

    def add_app(self, id: str, secret: str, verify_token: str, *, webhook_url: str = "") -> App:
        app = self._world.apps[id] = App(id=id, secret=secret, verify_token=verify_token, webhook_url=webhook_url)
        self._box(app)
        return app

    def add_account(self, id: str, *, app: str = "", **fields: Any) -> SimulatedAccount:
        """Add a WABA, subscribed by `app` (default: the first) unless `subscribed` says otherwise."""
        fields.setdefault("subscribed", [app or next(iter(self._world.apps))])
        account = self._world.accounts[id] = SimulatedAccount(id=id, **fields)
        return account

    def add_number(self, id: str, digits: str, *, account: str = "", **fields: Any) -> Number:
        owner = self._world.account_of(account).id
        number = self._world.numbers[id] = Number(id=id, account=owner, digits=only_digits(digits), **fields)
        return number

    def add_template(self, template: Template | Mapping[str, Any]) -> Template:
        """Add a template, APPROVED unless it says otherwise. Raises ValueError."""
        made = template if isinstance(template, Template) else msgspec.convert(dict(template), Template)
        return self._world.add_template(made)

    def set_token(self, token: str, **fields: Any) -> Token:
        """Add a token, or change one: state (valid, expired, revoked), scopes, accounts, expires_at, denial."""
        known = self._world.tokens.get(token)
        if known is None:
            known = self._world.tokens[token] = Token(token=token, app=fields.pop("app", next(iter(self._world.apps))))
        for name, value in fields.items():
            setattr(known, name, value)
        return known

    def set_number(self, number: str = "", **fields: Any) -> Number:
        """Change a number without an event: status, registered, refusal (any code), name_status, throughput …"""
        found = self._world.number_of(number)
        self._world.change(found, **fields)
        return found

    def set_account(self, account: str = "", **fields: Any) -> SimulatedAccount:
        """Change an account without an event: refusal, restrictions …"""
        found = self._world.account_of(account)
        self._world.change(found, **fields)
        return found

    def set_template(self, template: str, *, account: str = "", language: str = "", **fields: Any) -> Template:
        """Change a template, by id or name, without an event."""
        found = self._world.template_of(template, account, language)
        self._world.change(found, **fields)
        return found

    def set_webhook(self, url: str, *, app: str = "", verify_token: str | None = None) -> None:
        """Send callbacks to this URL, once the handshake has passed."""
        self.outbox(app).set_url(url, verify_token)

    # -- outcomes and events -------------------------------------------------------------------------------------------

    def script(self, ending: str, script: Script | str | Mapping[str, Any] | list[str] | None, **changes: Any) -> None:
        """Set the outcome of sends to recipients with this ending (a full number, or its last digits; "" is everyone).

        A script is one of `SCRIPTS` by name, a `Script`, a list like `["sent", "failed:131026"]`, or its JSON; None
        removes it. Raises ValueError.
        """
        made = None if script is None else script_of(dict(script) if isinstance(script, Mapping) else script)
        if made is not None and changes:
            made = msgspec.structs.replace(made, **changes)
        if ending.lstrip("+") == "":
            self._world.scripts.default = made or SCRIPTS["happy"]
        else:
            self._world.scripts.set(only_digits(ending), made)

    def fault(self, kind: str, **fields: Any) -> None:
        """Inject a `Fault` into requests. Raises ValueError."""
        self._api.faults.append(msgspec.convert({"kind": kind, **fields}, Fault))

    def clear_faults(self) -> None:
        self._api.faults.clear()

    def inbound(self, sender: str = "", text: str = "Hello", **fields: Any) -> str:
        """Send a message from a user to a number; fields as in `Inbound`. Returns the wamid. Raises KeyError or
        ValueError."""
        wamid, item = receive(self._world, Inbound(sender=sender, text=text, **fields))
        self._api.emit(item)
        return wamid

    def open_window(self, user: str, *, number: str = "", seconds: float = 86_400.0) -> None:
        """Open a service window of this length from now, without a message; 0 closes it silently, as if Meta forgot
        it."""
        key = (self._world.number_of(number).id, self.user(user).key)
        self._world.windows[key] = self.clock.now() + seconds

    def alarm(self, code: int = 130429, *, number: str = "") -> None:
        """Send a `value.errors` update: a problem that belongs to no message."""
        self._api.emit(alarm(self._world, number, code))

    def template_event(self, template: str, event: str, **fields: Any) -> None:
        """Send a template event (PAUSED, APPROVED …, quality, category_notice, category); fields as in `TemplateEvent`.
        Raises KeyError."""
        self._api.emit(template_event(self._world, TemplateEvent(template=template, event=event, **fields)))

    def number_event(self, event: str, **fields: Any) -> None:
        """Send a number event; fields as in `NumberEvent`. THROUGHPUT_UPGRADE causes a minute of 131057. Raises
        KeyError."""
        self._api.emit(number_event(self._world, NumberEvent(event=event, **fields)))

    def account_event(self, event: str, **fields: Any) -> None:
        """Send an account event (ACCOUNT_RESTRICTION, DISABLED_UPDATE, capability …); fields as in `AccountEvent`.
        Raises KeyError."""
        self._api.emit(account_event(self._world, AccountEvent(event=event, **fields)))

    def status(self, wamid: str, status: str, *, code: int = 0) -> None:
        """Emit a status of an accepted message now, whatever its script says. Raises KeyError."""
        self._api.happen(self._world.messages[wamid], Script(), Step(status, code))

    def inject(
        self,
        payload: Any,
        *,
        kind: Literal["", "statuses", "messages", "errors"] = "statuses",
        field: str = "messages",
        number: str = "",
        account: str = "",
    ) -> None:
        """Send an update unchanged, even if invalid: a status or message of a number, or (kind "") the whole
        `value`."""
        if kind:
            found = self._world.number_of(number)
            self._api.emit(Item(account or found.account, field, kind, payload, metadata(found)))
        else:
            now = int(self.clock.now())
            self._api.emit(Item(account or self._world.account_of("").id, field, "", payload, time=now))

    # -- callbacks -----------------------------------------------------------------------------------------------------

    def outbox(self, app: str = "") -> Outbox:
        """The outbox of an app (default: the first): `hold`, `release`, `repeat`, `handshake`, `attempts`,
        `waiting`."""
        return self._outboxes[app or next(iter(self._outboxes))]

    async def verified(self) -> None:
        """Return when every handshake has passed: callbacks leave from now on."""
        for box in self._outboxes.values():
            if box.app.webhook_url:
                await box.verified.wait()

    async def settle(self) -> None:
        """Return when no callback is in flight and none could be sent now."""
        for box in self._outboxes.values():
            await box.settle()

    def freeze(self) -> None:
        """Stop time until `advance` or `thaw`: only actions without a delay still run by themselves."""
        self.clock.run(0)

    def thaw(self, speed: float = 1.0) -> None:
        self.clock.run(speed)

    async def advance(self, seconds: float) -> None:
        """Let time pass: due actions run in order, and their callbacks are awaited."""
        await self.clock.advance(seconds, self.settle)
        await self.settle()

    # -- inspection ----------------------------------------------------------------------------------------------------

    @property
    def world(self) -> World:
        """The state of Meta's side, for tests that look deeper."""
        return self._world

    @property
    def counters(self) -> Counters:
        return self._world.counters

    @property
    def requests(self) -> list[SentMessage]:
        """The latest requests, with tokens redacted."""
        return list(self._world.requests)

    @property
    def attempts(self) -> list[Attempt]:
        """The latest callback attempts of all apps, in chronological order."""
        return sorted((one for box in self._outboxes.values() for one in box.attempts), key=lambda one: one.at)

    def user(self, recipient: str) -> User:
        return self._world.user(only_digits(recipient))

    def accepted_for(self, recipient: str) -> list[Message]:
        """Every message accepted for this user, delivered or not."""
        user = self.user(recipient)
        return [one for one in self._world.messages.values() if one.user is user]

    def sends_to(self, recipient: str) -> list[Message]:
        """The distinct messages that reached this user's phone."""
        return [one for one in self.accepted_for(recipient) if one.reached]

    @property
    def doubled(self) -> dict[str, int]:
        """biz_opaque_callback_data with which more than one message was accepted: must stay empty."""
        return {tracker: count for tracker, count in self._world.trackers.items() if count > 1}

    # -- internal ------------------------------------------------------------------------------------------------------

    def _box(self, app: App) -> Outbox:
        box = self._outboxes.get(app.id)
        if box is None:
            box = self._outboxes[app.id] = Outbox(app, lambda: self._options, self.clock, lambda: self._world.counters)
            if self._client is not None:
                box.open(self._client)
        return box

    async def _listen(self) -> None:
        options = self._options
        self.port = await self._http.listen(options.host, self.port or options.port, shared=options.shared)

    def _handle(self, head: RequestHead, body: bytes) -> Coming:
        request = request_of(head, body)
        if request.path.startswith("/_sim"):
            return self._control.handle(request)
        return self._api.handle(request)
