"""Whether any supplier would carry a sender to a number: checked before a message costs anything.

The rule nobody may break: where no rule names a sender, the check costs a single comparison; and it refuses only what
dispatch would refuse with the same tables, never more.
"""

from __future__ import annotations

from time import monotonic
from uuid import UUID

from heliograph.base import phones
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.loading_cache import EVERY
from heliograph.networks.directory import Directory
from heliograph.routes import rules
from heliograph.routes.lookup import Table
from heliograph.senders import loading
from heliograph.senders.book import Book
from heliograph.sms.accepting.sender_ids import SenderIdNotAllowed
from heliograph.sms.dispatch import routing


class RoutingCache:
    """Suppliers, routes and rules for senders, as cached by a process that accepts messages."""

    def __init__(self) -> None:
        self.book = Book()
        self._version = 0
        self._table = Table([])
        self._compiled: tuple[list[routing.Supplier], str] = [], ""
        self._directory = Directory()
        self._refreshed_at = float("-inf")

    @property
    def age(self) -> float:
        """Seconds since the last `refresh` began."""
        return monotonic() - self._refreshed_at

    async def refresh(self, conn: Connection | Pool) -> None:
        """Load what has changed, unless that was done within EVERY. Routes are read only if some rule can refuse."""
        if self.age < EVERY:
            return
        at = monotonic()
        if isinstance(conn, Pool):
            async with conn.acquire() as own:
                await self._read(own)
        else:
            await self._read(conn)
        self._refreshed_at = at

    async def _read(self, conn: Connection) -> None:
        if (version := await loading.version(conn)) != self._version:
            self.book, self._version = await loading.load(conn), version
        if not self.book.judges:
            return
        serving = [one for one in routing.serving(await routing.load(conn)) if one.state == "active"]
        compiled = serving, await rules.version(conn)
        if compiled != self._compiled:
            self._table, self._compiled = Table(serving, await rules.active(conn)), compiled

    def refusal(
        self, to: str, *, organization_id: UUID, sender_id: UUID, sender: str, traffic_class: str
    ) -> SenderIdNotAllowed | None:
        """Why a live message from this sender is not accepted: no supplier that carries to this number (E.164) accepts
        it. If no supplier carries there at all, the sender is not the reason."""
        if not self.book.judges:
            return None
        place = self._directory.place(to)
        found = self._table.candidates(
            to,
            organization_id=organization_id,
            sender=sender,
            traffic_class=traffic_class,
            network=place.network or None,
            is_certain=place.is_exact,
        )
        if owners := self.book.owners(sender):
            found = self._table.owned(found, to, owners)
        for id in found.suppliers:
            # A network that is only guessed now may be known for certain by the time of sending.
            if self.book.spoken(id, to, organization_id=organization_id, sender=sender, network=place.network):
                return None
        if not found.suppliers:
            return None
        country = phones.country(to)
        states = {self.book.registration(id, country, organization_id, sender, place.network) for id in found.suppliers}
        known = [one for one in ("pending", "asked", "refused") if one in states]
        return SenderIdNotAllowed(senderId=str(sender_id), country=country, registration=known[0] if known else None)
