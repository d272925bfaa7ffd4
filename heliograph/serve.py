"""The web process: settings → pools → the API at /v1, /docs, callbacks at /in, the dashboard, the console → the server.

Several of them may share a port (SO_REUSEPORT); they have nothing in common but the database. The rule nobody may
break: a process that is told to stop answers the requests that it has begun, and accepts no new ones.

It has over 400 lines because the process is assembled here, part by part, and shut down in the opposite order.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from functools import partial
from math import ceil

import msgspec
import structlog

from heliograph import doctor, requests
from heliograph.accounts import idempotency
from heliograph.accounts.api_keys.keyring import Keyring
from heliograph.accounts.installation import SettingsCache
from heliograph.api.callbacks import sms as sms_callbacks
from heliograph.api.callbacks import whatsapp as whatsapp_callbacks
from heliograph.api.callbacks.door import PREFIX as CALLBACKS
from heliograph.api.callbacks.door import Callbacks
from heliograph.api.document import openapi
from heliograph.api.document.docs import FRONT, Docs, prefers_html
from heliograph.api.document.docs import PATH as DOCS
from heliograph.api.document.error_pages import errors
from heliograph.api.document.guide import PATH as GUIDE
from heliograph.api.door import probes
from heliograph.api.door.guard import Guard, Receive, Scope, Send
from heliograph.api.door.health import HealthChecks
from heliograph.api.door.limits import AnonymousLimiter, Limiter
from heliograph.api.door.operation import Services
from heliograph.api.door.probes import Probes
from heliograph.api.routes import OPERATIONS, PREFIX
from heliograph.api.shapes import envelope
from heliograph.audit.failures import Failures
from heliograph.base.crypto import derive_key
from heliograph.base.database import clock, pulse
from heliograph.base.database.pool import Pool, open_pool
from heliograph.base.errors import kinds
from heliograph.base.network.sockets import allow
from heliograph.base.process import crash, heartbeat, memory, signals
from heliograph.base.process.measures import Gauge, database_up
from heliograph.base.process.settings import Settings, current
from heliograph.base.standby.readers import Readers
from heliograph.console import places as console_places
from heliograph.console.table import TABLE as CONSOLE_TABLE
from heliograph.dashboard import places
from heliograph.dashboard.table import TABLE
from heliograph.health import findings, keys, webs
from heliograph.http.proxies import TrustedProxies
from heliograph.http.server.asgi import Asgi
from heliograph.http.server.exchange import Service
from heliograph.http.server.registry import Limits, Registry, limits_of
from heliograph.http.server.server import Server, bound, place_of
from heliograph.http.static import StaticPage
from heliograph.http.turns import Places
from heliograph.metrics.exporting import Exporter, exported
from heliograph.pages import languages
from heliograph.pages.realms import CONSOLE, DASHBOARD
from heliograph.pages.requests import Services as PageServices
from heliograph.pages.serving.application import Pages
from heliograph.people import factors, sessions
from heliograph.people.noticing.guessing import Guesses
from heliograph.people.operators import sessions as operator_sessions
from heliograph.people.session_keeping.book import SessionBook
from heliograph.queue import timers
from heliograph.queue.runner import announce
from heliograph.sealing import text_keys
from heliograph.sms.accepting.accept import Acceptor
from heliograph.sms.callbacks.intake import SupplierCallbacks
from heliograph.webhooks import endpoints
from heliograph.whatsapp.accepting.accept import Acceptor as WhatsAppAcceptor
from heliograph.whatsapp.callbacks.intake import CallbackIntake
from heliograph.whatsapp.mirror import apps
from heliograph.whatsapp.mirror.apps import AppBook

log = structlog.get_logger()

#: Seconds to wait for the database at start.
PATIENCE = 30.0
#: Seconds that the database server allows a statement beyond the rules' own waits.
MARGIN = 0.5
#: Connections for reads by pages, whose statements have a limit of their own: pages never slow down the product.
PAGE_READS = 2
#: Connections to the standby, if there is one, for lists of the API.
LIST_READS = 4
#: Paths served alongside a console at an address of its own: the guide, with its stylesheet and the error pages.
GUIDED = (GUIDE, f"{DOCS}/")
#: Requests per second from one address if the guide is served alone.
GUIDE_RATE = 1000
#: Files that a process may have open besides its connections, and a quarter of these that are being refused.
OTHER_FILES = 512
#: Allocations between two runs of the garbage collector. Its default of 700 costs 2 to 15 % under load; with 10,000,
#: accepting hardly causes a run, and with 50,000, pages left 7 MB of garbage between two.
GC_THRESHOLD = 10_000


async def serve(
    settings: Settings,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    sockets: list[socket.socket] | None = None,
    on_ready: Callable[[str], None] = lambda base_url: None,
    stop: asyncio.Event | None = None,
    own_process: bool = True,
) -> None:
    """Serve until SIGTERM, SIGHUP, SIGINT or `stop`. Then report not ready for `settings.not_ready_seconds`, but still
    accept requests; finally finish those in progress, for at most `settings.drain_seconds`.

    `sockets`: already bound, instead of `host` and `port` (0: any free one). `on_ready` gets the base URL once
    connections are accepted. `own_process`: set signal handlers and tune the garbage collector. Raises CannotListen,
    also for the console's own address, ClockDiffers, and what asyncpg raises without a database.
    """
    crash.arm(settings.crash_at)
    clock.arm(settings.clock_shift)
    text_keys.arm(settings)
    if own_process:
        settings = within_descriptors(settings)
    stop = stop or asyncio.Event()
    listening = sockets or [bound(host, port)]
    pool = await open_pool(
        settings.database_url,
        current=partial(current, settings, "database_url"),
        pooler=settings.pooler,
        size=settings.database_pool,
        wait=PATIENCE,
        patience=settings.database_patience_seconds,
        # Longer than a duplicate waits for the first request: it must get 409, not a statement timeout.
        statement=max(settings.database_patience_seconds, settings.idempotency_wait_seconds) + MARGIN,
    )
    try:
        clock.demand()
    except clock.ClockDiffers:
        pool.terminate()
        raise
    reads = await open_pool(
        settings.database_url,
        current=partial(current, settings, "database_url"),
        pooler=settings.pooler,
        size=PAGE_READS,
        wait=PATIENCE,
        patience=settings.database_patience_seconds,
        statement=settings.page_patience_seconds,
    )
    standby = partial(
        Readers,
        settings.reader_database_url,
        current=partial(current, settings, "reader_database_url"),
        bound=settings.reader_wait_seconds,
    )
    readers, page_readers = standby(size=LIST_READS), standby(size=PAGE_READS, statement=settings.page_patience_seconds)
    registry = Registry(limits_of(settings))
    services = _services(settings, pool, readers, registry)
    sealing = apps.seal_key(settings)
    intake = CallbackIntake(pool, AppBook(pool, sealing), sealing)
    suppliers = SupplierCallbacks(pool, settings)
    door = Callbacks(
        [
            whatsapp_callbacks.handler(intake, max_bytes=settings.max_callback_bytes),
            sms_callbacks.handler(suppliers, public_url=settings.public_url),
        ],
        services.limiter,
        public_url=settings.public_url,
    )
    guard = Guard(OPERATIONS, services)
    shared = _page_services(services, reads, page_readers, guard.places)
    pages, console = _dashboard(services, shared), _console(services, shared, reads)
    docs = Docs(services.strangers, settings.public_url)
    asgi = Asgi(
        _front(
            guard,
            docs,
            door,
            Probes(services.health, services.is_draining),
            pages,
            None if settings.console_listen else console,
        )
    )
    service = Service(
        registry,
        asgi.begin,
        partial(envelope.unanswered, public_url=settings.public_url),
        TrustedProxies(settings.trusted_proxies, settings.proxy_says),
    )
    server = Server(service, asgi.tasks)
    apart = _apart(settings, console, docs)
    background = [
        asyncio.create_task(work)
        for work in (
            pulse.watch(pool),
            readers.watch(pool),
            services.log.run(),
            services.failures.noted.run(),
            shared.guesses.noted.run(),
        )
    ]
    acceptors = (services.acceptor, services.whatsapp, intake, suppliers)
    announcers = [asyncio.create_task(announce(pool, one.stored)) for one in acceptors]
    try:
        async with contextlib.AsyncExitStack() as running:
            running.enter_context(signals.stopping(stop) if own_process else contextlib.nullcontext())
            shown = await running.enter_async_context(
                exported(settings.metrics_listen, Exporter(parts=lambda: _gauges(server, readers, pool)))
            )
            running.push_async_callback(
                _ended,
                asyncio.create_task(
                    webs.attend(pool, metrics=_metrics(settings, shown), secret_keys=keys.fingerprints(settings))
                ),
            )
            running.push_async_callback(_ended, asyncio.create_task(_look(pool, settings)))
            await server.start(listening)
            if apart is not None:
                await apart.start([bound(*place_of(settings.console_listen))])
            if own_process:
                _tune()
                # In a thread: loading what the first page of a process needs would block the event loop for 0.1 s or
                # more.
                running.push_async_callback(_ended, asyncio.create_task(asyncio.to_thread(languages.learn)))
            clock.running()
            on_ready(_base_url(listening[0]))
            await stop.wait()
            registry.draining = True  # /readyz and /v1/health say so, and each connection ends with its next answer
            await asyncio.sleep(settings.not_ready_seconds)
            if apart is not None:
                apart.abort()
            await server.stop(max(settings.drain_seconds, 1.0))
    finally:
        server.abort()
        if apart is not None:
            apart.abort()
        for acceptor in acceptors:
            await acceptor.drain()
        for announcer in announcers:
            announcer.cancel()
        await services.keyring.close()
        for one in (pages, console):
            await one.services.sessions.close()
        for task in background:
            task.cancel()
        # At once: each may have to wait for the write before.
        await asyncio.gather(services.failures.noted.write(), shared.guesses.noted.write(), services.log.close())
        reads.terminate()
        for standbys in (readers, page_readers):
            await standbys.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                await pool.close()
        pool.terminate()


def within_descriptors(settings: Settings) -> Settings:
    """The settings, with fewer connections if this process may not open as many files. Without one left, it could
    neither accept a connection, to close another one for it, nor open one to the database: whoever leaves connections
    open would keep all others out."""
    wanted = settings.max_connections * 5 // 4 + OTHER_FILES
    files = allow(wanted)
    if files is None or files >= wanted:
        return settings
    most = max(1, (files - min(OTHER_FILES, files // 2)) * 4 // 5)
    each = max(1, settings.max_connections_per_address * most // settings.max_connections)
    log.warning("fewer connections than set: too few files may be open", files=files, needed=wanted, connections=most)
    return msgspec.structs.replace(settings, max_connections=most, max_connections_per_address=each)


def _services(settings: Settings, pool: Pool, readers: Readers, registry: Registry) -> Services:
    """What operations use."""
    acceptor = Acceptor(pool, keys_kept=timedelta(hours=settings.idempotency_hours))
    whatsapp = WhatsAppAcceptor(pool, settings=settings)
    return Services(
        pool=pool,
        readers=readers,
        settings=settings,
        keyring=Keyring(pool),
        limiter=Limiter(pool, settings),
        strangers=AnonymousLimiter(settings.rate_unauthenticated),
        log=requests.Log(pool),
        failures=Failures(pool),
        health=HealthChecks(pool, is_refusing=lambda: acceptor.intake.is_refusing or whatsapp.intake.is_refusing),
        acceptor=acceptor,
        whatsapp=whatsapp,
        webhook_rules=endpoints.rules(settings),
        answer_key=idempotency.seal_key(settings),
        cursor_key=derive_key(settings.secret_keys, "cursors"),
        document=_document(settings.public_url),
        is_draining=lambda: registry.draining,
        vocabulary=vocabulary(),
    )


def _document(public_url: str) -> StaticPage:
    """The API's document, as it is served. `public_url`: as in the settings; empty for none."""
    return StaticPage(openapi.document(OPERATIONS, public_url), "application/json", "no-cache", [envelope.NOSNIFF])


async def serve_guide(
    *, host: str, port: int, on_ready: Callable[[str], None], stop: asyncio.Event | None = None
) -> None:
    """Serve only the guide, the errors and the API reference, without settings or a database, until SIGTERM, SIGINT or
    `stop`. Raises CannotListen."""
    stop = stop or asyncio.Event()
    docs = Docs(AnonymousLimiter(GUIDE_RATE), document=_document(""))
    asgi = Asgi(partial(_guide, docs))
    service = Service(Registry(Limits()), asgi.begin, partial(envelope.unanswered, public_url=""), TrustedProxies())
    server, listening = Server(service, asgi.tasks), bound(host, port, shared=False)
    with signals.stopping(stop):
        await server.start([listening])
        on_ready(_base_url(listening))
        await stop.wait()
        await server.stop(1.0)


async def _guide(docs: Docs, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] in docs.paths - {FRONT}:
        await docs(scope, receive, send)
        return
    await send({"type": "http.response.start", "status": 307, "headers": [(b"location", GUIDE.encode())]})
    await send({"type": "http.response.body", "body": b""})


def _gauges(server: Server, readers: Readers, pool: Pool) -> Iterable[Gauge]:
    yield Gauge("heliograph_connections", "Open connections of clients", server.connections)
    yield database_up(not pool.is_away)
    yield from readers.gauges()


async def _look(pool: Pool, settings: Settings) -> None:
    """Run the checks and record their results while no worker does: the lack of a worker is one of them."""
    while True:
        await asyncio.sleep(heartbeat.BEAT)
        try:
            async with pool.acquire() as conn:
                if await findings.is_overdue(conn) and await timers.take(conn, findings.TIMER, every=findings.EVERY):
                    await findings.keep(conn, await doctor.examine(conn, settings, far=False))
        except Exception as error:
            # A check that fails must not bring down this process.
            log.warning("checks failed to run", error=type(error).__name__)


async def _ended(task: asyncio.Task[None]) -> None:
    # A connection that breaks during cancellation may replace the CancelledError, which is then lost.
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=2.0)


def _metrics(settings: Settings, port: int | None) -> str:
    """The address of this process's metrics; "": none."""
    return f"http://{settings.metrics_listen.rpartition(':')[0]}:{port}/metrics" if port is not None else ""


def _page_services(services: Services, reads: Pool, readers: Readers, places: Places) -> PageServices:
    """The services of pages. Writes use the pool of the API, with its `places`, reads use `reads`."""
    settings = services.settings

    async def status() -> tuple[str, int]:
        checks = await services.health.read()
        word = "down" if checks.database != "ok" else "waiting" if checks.worker != "ok" else "ok"
        if word == "ok" and checks.queue != "ok":
            word = "slow"
        return word, ceil(services.health.late / 60)

    return PageServices(
        pool=services.pool,
        places=places,
        reads=reads,
        readers=readers,
        settings=settings,
        sessions=SessionBook(reads, sessions.authenticate_many, sessions.touch),
        failures=services.failures,
        guesses=Guesses(services.pool),
        log=services.log,
        vocabulary=services.vocabulary,
        form_key=derive_key(settings.secret_keys, "forms"),
        answer_key=services.answer_key,
        cursor_key=services.cursor_key,
        factor_key=factors.seal_key(settings),
        sms=services.acceptor,
        whatsapp=services.whatsapp,
        installation=SettingsCache(reads),
        status=status,
        refusal_of=envelope.refusal_of,
    )


def vocabulary() -> requests.Vocabulary:
    """The operations and codes that requests of the API and of pages are logged with. Complete here, since this module
    loads all those that answer requests."""
    return requests.Vocabulary(
        frozenset({one.id for one in OPERATIONS} | {one.path for one in TABLE.routes if one.method == "POST"}),
        # Pages have refusals that no operation has, so the documented ones are not all.
        frozenset({one.code for one in errors()} | {one.code for one in kinds()}),
    )


def _dashboard(services: Services, shared: PageServices) -> Pages:
    """The pages of organizations."""
    return Pages(
        TABLE,
        shared,
        realm=DASHBOARD,
        folders=[places.TEMPLATES],
        frame=places.frame,
        admit=services.strangers.admit,
    )


def _console(services: Services, shared: PageServices, reads: Pool) -> Pages:
    """The pages of operators: with sessions of their own, and forms that do not accept the dashboard's tokens."""
    settings = services.settings
    address = settings.console_url or ("" if settings.console_listen else settings.public_url)
    return Pages(
        CONSOLE_TABLE,
        msgspec.structs.replace(
            shared,
            settings=msgspec.structs.replace(settings, public_url=address),
            # Operators are few, and act when everybody else waits.
            places=Places(settings.database_pool, patience=settings.database_patience_seconds),
            # Operators look at the primary's own activity and statistics.
            readers=Readers(""),
            sessions=SessionBook(reads, operator_sessions.authenticate_many, operator_sessions.touch),
            form_key=derive_key(settings.secret_keys, "forms of the console"),
        ),
        realm=CONSOLE,
        folders=[console_places.TEMPLATES],
        frame=console_places.frame,
        admit=services.strangers.admit,
    )


def _apart(settings: Settings, console: Pages, docs: Docs) -> Server | None:
    """The server for the console's own address; None if it has none."""
    if not settings.console_listen:
        return None
    asgi = Asgi(_beside(console, docs))
    service = Service(
        Registry(limits_of(settings)),
        asgi.begin,
        partial(envelope.unanswered, public_url=settings.console_url),
        TrustedProxies(settings.trusted_proxies, settings.proxy_says),
    )
    return Server(service, asgi.tasks)


def _beside(console: Pages, docs: Docs) -> Callable[..., Awaitable[None]]:
    """The console with the guide, so that operators can read it where the rest of the service cannot be reached."""

    def app(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        is_read = scope["path"].startswith(GUIDED) and scope["path"] in docs.paths
        return (docs if is_read else console)(scope, receive, send)

    return app


def _front(
    guard: Guard, docs: Docs, door: Callbacks, probe: Probes, pages: Pages, console: Pages | None
) -> Callable[..., Awaitable[None]]:
    """Dispatch requests to apps. Not a coroutine: a request to the API costs one comparison."""
    paths = docs.paths

    def app(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        path = scope["path"]
        if path.startswith(PREFIX):
            return guard(scope, receive, send)
        if path.startswith(CALLBACKS):
            return door(scope, receive, send)
        if path in probes.PATHS:
            return probe(scope, receive, send)
        if path == FRONT and prefers_html(scope["headers"]):
            return pages(scope, receive, send)
        if path in paths:
            return docs(scope, receive, send)
        if console is not None and (path == CONSOLE.prefix or path.startswith(f"{CONSOLE.prefix}/")):
            return console(scope, receive, send)
        # Somebody who mistypes the address of a page gets a page.
        is_page = pages.owns(path) or prefers_html(scope["headers"])
        return (pages if is_page else guard)(scope, receive, send)

    return app


def _tune() -> None:
    memory.give_back()
    # Everything that exists now stays forever: the collector need not examine it again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 100)


def _base_url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
