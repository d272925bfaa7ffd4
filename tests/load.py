"""Load over HTTP that keeps a ledger. The rule nobody may break: every number is retried until it has its 202."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Self

import aiohttp
import msgspec

from tests.processes import until


class Answer(msgspec.Struct, frozen=True):
    """A response, when it was requested and when it came (time.monotonic)."""

    asked: float
    at: float
    status: int
    retry_after: str | None


class Client:
    """Sends messages; each is repeated with the same key until its 202 comes."""

    def __init__(self, base_url: str, key: str) -> None:
        self._base_url = base_url
        self._key = key
        #: Message id by recipient: the ledger.
        self.ledger: dict[str, str] = {}
        self.answers: list[Answer] = []
        #: Requests that ended without a response.
        self.unanswered = 0

    async def __aenter__(self) -> Self:
        self.session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=15), headers={"authorization": f"Bearer {self._key}"}
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.session.close()

    async def ask(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        """Make a request; returns the status and the decoded body."""
        async with self.session.request(method, f"{self._base_url}/v1{path}", **options) as answer:
            return answer.status, msgspec.json.decode(await answer.read())

    async def alive(self) -> bool:
        """Whether the web process reports that it is alive, which needs no database."""
        async with self.session.get(f"{self._base_url}/livez") as answer:
            await answer.read()
            return answer.status == 200

    async def send(self, number: str, *, within: float = 90.0, **fields: Any) -> str:
        """Send an SMS until it is accepted; returns its id."""
        body = {"to": number, "message": "Hello", "clientReference": number} | fields
        return await self.send_until_accepted("/sms/send", number, body, within=within)

    async def send_until_accepted(
        self, path: str, number: str, body: dict[str, Any], *, within: float = 90.0, retry_on: bytes = b""
    ) -> str:
        """Repeat a request until it is accepted; returns the id of its message. A response other than 202, 503 or
        `idempotency_in_progress` fails the test. `retry_on`: the code of another refusal that is temporary."""
        headers = {"idempotency-key": f"key of {number}"}
        deadline = time.monotonic() + within
        while True:
            asked = time.monotonic()
            try:
                async with self.session.post(f"{self._base_url}/v1{path}", json=body, headers=headers) as answer:
                    raw = await answer.read()
                    retry_after = answer.headers.get("retry-after")
                    self.answers.append(Answer(asked, time.monotonic(), answer.status, retry_after))
                    if answer.status == 202:
                        id: str = msgspec.json.decode(raw)["message"]["id"]
                        assert self.ledger.setdefault(number, id) == id, "the same key made another message"
                        return id
                    early = answer.status == 409 and any(
                        code and code in raw for code in (b"idempotency_in_progress", retry_on)
                    )
                    assert answer.status == 503 or early, (answer.status, raw)
            except (aiohttp.ClientError, TimeoutError, ConnectionError):
                self.unanswered += 1
            assert time.monotonic() < deadline, f"no 202 for {number} in {within} s"
            await asyncio.sleep(0.1)


class Load(Client):
    """A client with several concurrent senders, each of which sends to one number after another until the end of the
    `async with`."""

    def __init__(self, base_url: str, key: str, *, senders: int = 6, pause: float = 0.06) -> None:
        """`pause`: seconds between two messages of a sender."""
        super().__init__(base_url, key)
        self._senders = senders
        self._pause = pause
        self._next = 0
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._tasks = [asyncio.create_task(self._keep_sending()) for _ in range(self._senders)]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._stop.set()
        if error[0] is not None:
            for task in self._tasks:
                task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=error[0] is not None)
        finally:
            await super().__aexit__(*error)

    async def until_sent(self, count: int, *, within: float = 120.0) -> None:
        """Wait until the ledger has this many entries."""
        await until(lambda: len(self.ledger) >= count or any(task.done() for task in self._tasks), within=within)
        for task in self._tasks:
            if task.done():
                task.result()

    async def _keep_sending(self) -> None:
        while not self._stop.is_set():
            n, self._next = self._next, self._next + 1
            await self.send_nth(n)
            await asyncio.sleep(self._pause)

    async def send_nth(self, n: int) -> None:
        """Send the nth message; the senders call this with each number once."""
        await self.send(f"+25884{n:07d}")
