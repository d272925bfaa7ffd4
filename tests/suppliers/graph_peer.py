"""Shared by tests of the Graph API simulator: a receiver of callbacks, a plain client, and waiting."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from heliograph.simulators.graph.simulator import GraphSimulator, Setup, quick
from tests.ports import held_port

NUMBER, WABA, TOKEN, SECRET = "555000111222333", "900100200300400", "graph-token", "graph-app-secret"
USER = "+212600000017"


def signed(body: bytes, header: str | None, secret: str = SECRET) -> bool:
    """An independent verification, written from Meta's page alone."""
    if header is None or len(header) != 71 or not header.startswith("sha256="):
        return False
    return hmac.compare_digest(header, "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest())


class Hook:
    """A receiver that keeps every callback; responds with `answers` one after the other, then with 200."""

    def __init__(self) -> None:
        self.url = ""
        self.callbacks: list[tuple[bytes, dict[str, str]]] = []
        self.answers: list[int] = []
        self.challenges = 0
        self.verify_token = "graph-verify-token"
        self.most_at_once = 0
        #: While true, callbacks are received but not answered.
        self.silent = False
        self._at_once = 0

    async def take(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            self.challenges += 1
            if request.query.get("hub.verify_token") != self.verify_token or request.query["hub.mode"] != "subscribe":
                return web.Response(status=403)
            return web.Response(text=request.query["hub.challenge"])
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        body = await request.read()
        await asyncio.sleep(0)
        while self.silent:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        self._at_once -= 1
        self.callbacks.append((body, {name.lower(): value for name, value in request.headers.items()}))
        return web.Response(status=self.answers.pop(0) if self.answers else 200)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body, _ in self.callbacks]

    @property
    def values(self) -> list[dict[str, Any]]:
        """Every `value`, in the order of arrival."""
        return [change["value"] for body in self.bodies for entry in body["entry"] for change in entry["changes"]]

    def items(self, kind: str) -> list[dict[str, Any]]:
        """Every status, message or error."""
        return [one for value in self.values for one in value.get(kind, [])]

    def statuses(self, wamid: str) -> list[str]:
        return [one["status"] for one in self.items("statuses") if one["id"] == wamid]


@asynccontextmanager
async def hooked() -> AsyncIterator[Hook]:
    hook = Hook()
    app = web.Application(client_max_size=4 * 1024 * 1024)
    app.router.add_route("*", "/hook", hook.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    hook.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    try:
        yield hook
    finally:
        await runner.cleanup()


class Client:
    """A client as plain as can be."""

    def __init__(self, graph: GraphSimulator, session: aiohttp.ClientSession) -> None:
        self.graph, self.session = graph, session
        self.version = "v25.0"
        self.headers = {"authorization": f"Bearer {TOKEN}"}

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        options.setdefault("headers", self.headers)
        url = f"{self.graph.base_url}{path if path.startswith('/_') else f'/{self.version}{path}'}"
        async with self.session.request(method, url, json=body, **options) as answer:
            text = await answer.text()
            try:
                return answer.status, json.loads(text)
            except ValueError:
                return answer.status, text

    async def get(self, path: str, **options: Any) -> tuple[int, Any]:
        return await self.call("GET", path, **options)

    async def send(self, to: str | None = USER, *, number: str = NUMBER, **body: Any) -> tuple[int, Any]:
        made = {"messaging_product": "whatsapp", "to": to, **body}
        return await self.call("POST", f"/{number}/messages", {k: v for k, v in made.items() if v is not None})

    async def remind(self, to: str = USER, **body: Any) -> str:
        """Send the simple template; returns its wamid."""
        status, answer = await self.send(to, type="template", template=reminder(), **body)
        assert status == 200, answer
        return str(answer["messages"][0]["id"])

    async def code(self, *arguments: Any, **body: Any) -> int:
        """Meta's error code of a send; 0: it was accepted."""
        _, answer = await self.send(*arguments, **body)
        return int(answer["error"]["code"]) if "error" in answer else 0


def reminder(*values: str, **changes: Any) -> dict[str, Any]:
    texts = [{"type": "text", "text": one} for one in values or ("Amal", "Thursday")]
    made = {"name": "appointment_reminder", "language": {"code": "en"}}
    return {**made, "components": [{"type": "body", "parameters": texts}], **changes}


@asynccontextmanager
async def graph(setup: Setup | None = None, **options: Any) -> AsyncIterator[tuple[GraphSimulator, Client, Hook]]:
    """A simulator, a client for it, and the receiver of its callbacks; the handshake has passed. Nobody else gets its
    port while it refuses connections."""
    async with hooked() as hook, aiohttp.ClientSession() as session:
        with held_port() as port:
            simulator = GraphSimulator(quick(**({"port": port, "webhook_url": hook.url} | options)), setup)
            async with simulator:
                await asyncio.wait_for(simulator.verified(), 120)
                yield simulator, Client(simulator, session), hook


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
