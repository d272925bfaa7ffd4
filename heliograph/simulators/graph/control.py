"""The control plane, `/_sim/…`: the simulator's methods as JSON over HTTP, for running it as a separate process.

    GET    /_sim                      its objects and counters
    POST   /_sim/reset                restore the initial state
    GET    /_sim/clock                {"now", "speed", "waiting"}
    POST   /_sim/clock                {"advance": seconds} or {"speed": 0 …}
    POST   /_sim/options              any option that may be changed
    POST   /_sim/webhook              {"url", "verify_token"?, "app"?}
    POST   /_sim/apps | accounts | numbers | templates | tokens     add one, or change the one with this id if it exists
    POST   /_sim/scripts              {"recipient": whole number or ending, "script": name, list or object, or null}
    POST   /_sim/faults               a fault; DELETE removes all of them
    POST   /_sim/connections          {"refuse": real seconds}
    POST   /_sim/inbound              a message from a user; returns its wamid
    POST   /_sim/windows              {"user", "number"?, "seconds"?}: 0 closes the service window
    POST   /_sim/events/template | number | account
    POST   /_sim/statuses             {"message": wamid, "status", "code"?}
    POST   /_sim/inject               {"payload" or "payloads", "kind"?, "field"?, "number"?, "account"?}
    POST   /_sim/callbacks            {"do": hold | release | settle | handshake | repeat, "times"?, "last"?, "app"?}
    GET    /_sim/callbacks | requests | messages | counters         ?last=100; messages: ?to=
    GET    /_sim/users/{digits}       {"accepted", "reached", "messages"}: distinct sends to a user

It has no authentication and must stay on the loopback interface. The rule nobody may break: it never shows a
bearer token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from heliograph.simulators.graph.callbacks.outbox import body_of
from heliograph.simulators.graph.operations.request import Request
from heliograph.simulators.http import Reply

_SHOWN = 100


class Control:
    """Exposes the methods of `simulator`, a GraphSimulator."""

    def __init__(self, simulator: Any) -> None:
        self._simulator = simulator
        self._accepting: asyncio.Task[None] | None = None
        self._routes: dict[tuple[str, str], Callable[[dict[str, Any]], Any]] = {
            ("GET", ""): self._summary,
            ("POST", "reset"): lambda given: simulator.reset(),
            ("GET", "clock"): self._clock,
            ("POST", "clock"): self._move,
            ("POST", "options"): lambda given: simulator.configure(**given),
            ("POST", "webhook"): lambda given: simulator.set_webhook(given.pop("url"), **given),
            ("POST", "apps"): lambda given: simulator.add_app(**given),
            ("POST", "accounts"): lambda given: self._add_or_set("accounts", given),
            ("POST", "numbers"): lambda given: self._add_or_set("numbers", given),
            ("POST", "templates"): self._template,
            ("POST", "tokens"): lambda given: simulator.set_token(given.pop("token"), **given) and None,
            ("POST", "scripts"): lambda given: simulator.script(given["recipient"], given["script"]),
            ("POST", "faults"): lambda given: simulator.fault(given.pop("kind"), **given),
            ("DELETE", "faults"): lambda given: simulator.clear_faults(),
            ("POST", "connections"): self._connections,
            ("POST", "inbound"): lambda given: {"id": simulator.inbound(**given)},
            ("POST", "windows"): lambda given: simulator.open_window(given.pop("user"), **given),
            ("POST", "events/template"): lambda given: simulator.template_event(**given),
            ("POST", "events/number"): lambda given: simulator.number_event(**given),
            ("POST", "events/account"): lambda given: simulator.account_event(**given),
            ("POST", "statuses"): lambda given: simulator.status(given.pop("message"), **given),
            ("POST", "inject"): self._inject,
            ("POST", "callbacks"): self._callbacks,
            ("GET", "callbacks"): self._attempts,
            ("GET", "requests"): lambda given: simulator.requests[-_last(given) :],
            ("GET", "messages"): self._messages,
            ("GET", "counters"): lambda given: simulator.counters,
        }

    async def handle(self, request: Request) -> Reply:
        """200 with JSON, 404 for an unknown path, 400 with {"error"} for an invalid request."""
        path = request.path.removeprefix("/_sim").strip("/")
        act = self._routes.get((request.method, path))
        if act is None and request.method == "GET" and path.startswith("users/"):
            act = self._user
            request.query["recipient"] = path.removeprefix("users/")
        if act is None:
            return Reply(404, b'{"error":"no such path"}')
        try:
            given = msgspec.json.decode(request.body, type=dict[str, Any]) if request.body else dict(request.query)
            result = act(given)
            if isinstance(result, Awaitable):
                result = await result
        except (AttributeError, KeyError, ValueError, TypeError) as error:
            text = f"missing or unknown: {error}" if isinstance(error, KeyError) else str(error)
            return Reply(400, msgspec.json.encode({"error": text}))
        return Reply(200, msgspec.json.encode({"ok": True} if result is None else result))

    def _summary(self, given: dict[str, Any]) -> Any:
        world = self._simulator.world
        return {
            "base_url": self._simulator.base_url,
            "numbers": {one.id: one.digits for one in world.numbers.values()},
            "accounts": list(world.accounts),
            "templates": [f"{one.name} {one.language} {one.status}" for one in world.templates.values()],
            "webhooks": {
                app.id: {
                    "url": app.webhook_url,
                    "passed": self._simulator.outbox(app.id).passed,
                    "problem": self._simulator.outbox(app.id).handshake_problem,
                    "waiting": self._simulator.outbox(app.id).waiting,
                }
                for app in world.apps.values()
            },
            "counters": world.counters,
            "doubled": self._simulator.doubled,
            "clock": self._clock(given),
        }

    def _clock(self, given: dict[str, Any]) -> Any:
        clock = self._simulator.clock
        return {"now": clock.now(), "speed": clock.speed, "waiting": clock.waiting}

    async def _move(self, given: dict[str, Any]) -> Any:
        if "speed" in given:
            self._simulator.clock.run(float(given["speed"]))
        if "advance" in given:
            await self._simulator.advance(float(given["advance"]))
        return self._clock(given)

    def _add_or_set(self, kind: str, given: dict[str, Any]) -> None:
        simulator = self._simulator
        known = getattr(simulator.world, kind)
        name = given.pop("id")
        if name in known:
            (simulator.set_account if kind == "accounts" else simulator.set_number)(name, **given)
        elif kind == "accounts":
            simulator.add_account(name, **given)
        else:
            simulator.add_number(name, **given)

    def _template(self, given: dict[str, Any]) -> Any:
        if given.get("id") in self._simulator.world.templates:
            return self._simulator.set_template(given.pop("id"), **given)
        return self._simulator.add_template(given)

    def _inject(self, given: dict[str, Any]) -> None:
        payloads = given.pop("payloads", None)
        for payload in [given.pop("payload")] if payloads is None else payloads:
            self._simulator.inject(payload, **given)

    async def _connections(self, given: dict[str, Any]) -> None:
        seconds = float(given["refuse"])

        async def accept() -> None:
            # Lets the response to this request go out first.
            await asyncio.sleep(0.05)
            self._simulator.refuse_connections()
            await asyncio.sleep(seconds)
            await self._simulator.accept_connections()

        self._accepting = asyncio.get_running_loop().create_task(accept())

    async def _callbacks(self, given: dict[str, Any]) -> Any:
        box = self._simulator.outbox(given.get("app", ""))
        what = given["do"]
        if what == "hold":
            box.hold()
        elif what == "release":
            box.release()
        elif what == "settle":
            await self._simulator.settle()
        elif what == "handshake":
            return {"passed": await box.handshake(), "problem": box.handshake_problem}
        elif what == "repeat":
            return {"statuses": await box.repeat(int(given.get("times", 1)), last=int(given.get("last", 1)))}
        else:
            raise ValueError(f"no way to {what!r} callbacks")
        return {"waiting": box.waiting}

    def _attempts(self, given: dict[str, Any]) -> Any:
        return [
            {
                name: getattr(one, name)
                for name in ("at", "url", "items", "status", "seconds", "error", "attempt", "repeated", "headers")
            }
            | {"body": body_of(one)}
            for one in self._simulator.attempts[-_last(given) :]
        ]

    def _messages(self, given: dict[str, Any]) -> Any:
        simulator = self._simulator
        found = simulator.accepted_for(given["to"]) if "to" in given else list(simulator.world.messages.values())
        return found[-_last(given) :]

    def _user(self, given: dict[str, Any]) -> Any:
        simulator = self._simulator
        found = simulator.accepted_for(given["recipient"])
        user = simulator.user(given["recipient"])
        return {"user": user, "accepted": user.accepted, "reached": user.reached, "messages": found[-_last(given) :]}


def _last(given: dict[str, Any]) -> int:
    return max(1, int(given.get("last", _SHOWN)))
