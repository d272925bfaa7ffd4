"""Name resolution: a name is resolved once, its addresses are checked, and the result is cached for a short while.

The rule nobody may break: no address is returned unchecked, and if any address of a name is refused, all are.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from itertools import zip_longest

from heliograph.base.network.addresses import Address

#: How long checked addresses are reused. Failures too: a broken name must not cost a look-up per attempt.
_NAME_SECONDS = 30.0
_BAD_NAME_SECONDS = 5.0
#: How long the other names of a destination wait for one that is being looked up.
_OTHERS_WAIT = 2.0
#: A look-up blocks a thread for as long as the resolver takes (10 s and more); at most this many threads, and more for
#: names that had addresses the last time: whoever keeps choosing new names whose servers never answer takes none of
#: these.
_LOOKUPS, _REPEATED = 64, 32
_REMEMBERED = 4_096
#: This machine ran out of descriptors, ports, buffers or threads, which is not the destination's fault.
OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.EAGAIN})

#: Name → addresses. Raises OSError. Runs in a thread.
Lookup = Callable[[str], list[str]]


class AddressBlocked(OSError):
    """An address that may not be connected to. An OSError: to the caller the name has no address."""

    def __init__(self, address: str) -> None:
        super().__init__(f"{address} is not a public address")


class Resolver:
    """Each look-up has its own thread, not one of the loop's few: names whose servers never answer must not delay the
    others. The threads are daemons, so none of them delays the end of the process."""

    def __init__(self, lookup: Lookup | None, check: Callable[[Address], bool]) -> None:
        """`lookup`: None for the system's. `check`: whether a connection to the address may be opened."""
        self._lookup = lookup or _system_lookup
        self._check = check
        self._threads, self._repeated = asyncio.Semaphore(_LOOKUPS), asyncio.Semaphore(_REPEATED)
        self._known: dict[str, tuple[float, list[str] | OSError]] = {}
        self._running: dict[str, asyncio.Task[list[str]]] = {}

    async def resolve(self, name: str) -> list[str]:
        """The checked addresses, alternating between families. Raises OSError if there are none; AddressBlocked if one
        is refused. A name may be an address itself."""
        with contextlib.suppress(ValueError):
            literal = ip_address(name)
            if not self._check(literal):
                raise AddressBlocked(name)
            return [str(literal)]
        expiry, found = self._known.get(name, (0.0, []))
        if time.monotonic() >= expiry:
            task = self._running.get(name)
            if task is None:
                task = self._running[name] = asyncio.create_task(self._resolve(name))
                task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
            try:
                # One caller's deadline must not end a look-up that others wait for.
                found = await asyncio.shield(task)
            except asyncio.CancelledError:
                if not task.cancelled():
                    raise
                found = OSError("closed while the name was being looked up")
        if isinstance(found, OSError):
            raise found.with_traceback(None)
        return found

    async def resolve_all(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """The names, each with each of its addresses, as `resolve` finds them. Raises OSError if there are none. A name
        whose look-up takes long is left out if another has an address."""
        lookups = [asyncio.ensure_future(self.resolve(name)) for name in names]
        found: list[tuple[str, str]] = []
        failure: OSError | None = None
        try:
            ended, waiting = await asyncio.wait(lookups, timeout=_OTHERS_WAIT)
            while waiting and all(one.exception() for one in ended):
                ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for name, lookup in zip(names, lookups, strict=True):
                if lookup.done():
                    try:
                        found += [(name, address) for address in lookup.result()]
                    except OSError as error:
                        failure = error
        finally:
            for lookup in lookups:
                lookup.cancel()
        if not found:
            raise failure or OSError("no address")
        return found

    def close(self) -> None:
        """Cancel look-ups in progress; those waiting for them get an OSError."""
        for task in self._running.values():
            task.cancel()

    async def _resolve(self, name: str) -> list[str]:
        outcome: list[str] | OSError
        _, last = self._known.get(name, (0.0, None))
        try:
            async with self._repeated if isinstance(last, list) else self._threads:
                outcome = await _in_thread(self._lookup, name)
            if not outcome:
                raise OSError("the name has no address")
            for address in outcome:
                if not self._check(ip_address(address)):
                    raise AddressBlocked(address)
            outcome = _by_turns(outcome)
        except (OSError, ValueError) as error:
            # The system's resolver raises UnicodeError, a ValueError, for a name with an invalid label.
            outcome = error if isinstance(error, OSError) else OSError(str(error))
        finally:
            self._running.pop(name, None)
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        if isinstance(outcome, OSError):
            if outcome.errno not in OURS:  # ours may be over a moment later
                self._known[name] = (time.monotonic() + _BAD_NAME_SECONDS, outcome)
            raise outcome
        self._known[name] = (time.monotonic() + _NAME_SECONDS, outcome)
        return outcome


def _by_turns(addresses: list[str]) -> list[str]:
    """The first stays first, then the families alternate (RFC 8305 §4), so that a family that does not work is soon
    given up."""
    first = ":" in addresses[0]
    same = [address for address in addresses if (":" in address) == first]
    other = [address for address in addresses if (":" in address) != first]
    return [address for pair in zip_longest(same, other) for address in pair if address is not None]


def _system_lookup(name: str) -> list[str]:
    infos = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    # A zone (`fe80::1%eth0`) stays in the text and is refused with the address.
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


async def _in_thread(work: Lookup, name: str) -> list[str]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[list[str]] = loop.create_future()

    def settle(result: list[str] | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result or [])

    def run() -> None:
        result: list[str] | None = None
        error: Exception | None = None
        try:
            result = work(name)
        except Exception as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            return  # the loop ended before the answer arrived; nobody is waiting

    try:
        threading.Thread(target=run, name="outbound-lookup", daemon=True).start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from None
    return await future
