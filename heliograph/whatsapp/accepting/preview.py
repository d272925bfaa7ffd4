"""Previews of sends: the cost, or the refusal that accepting would raise, checked in the same order.

The rule nobody may break: nothing is stored.
"""

from __future__ import annotations

import msgspec

from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection
from heliograph.base.money import decimal
from heliograph.consent.optouts import RecipientOptedOut
from heliograph.whatsapp.accepting.accept import Acceptor, Send, TextReply, WindowClosed
from heliograph.whatsapp.money.wallet import WalletInsufficientFunds


class Preview(msgspec.Struct, frozen=True):
    """The result that a send would have. Amounts are in millionths."""

    currency: str
    #: Amount that would be reserved, and charged on delivery; 0: free, or a test.
    price: int
    #: A wallet in another currency covers nothing.
    available: int


STANDING = """
SELECT (SELECT since FROM opted_out_since($1, $2) LIMIT 1) AS since,
       coalesce((SELECT available FROM wallets WHERE organization_id = $1 AND currency = $5), 0) AS available,
       thread.expires_at, coalesce(thread.expires_at >= now() + make_interval(secs => $4), false) AS is_open,
       coalesce(thread.free_until > now(), false) AS is_free
  FROM (SELECT 1) one LEFT JOIN LATERAL (
       SELECT c.expires_at, c.free_until FROM whatsapp_conversation_of($1, $3, $2) found
         JOIN whatsapp_conversations c ON c.organization_id = $1 AND c.id = found.conversation_id
        LIMIT 1) thread ON true
"""


async def preview(conn: Connection, acceptor: Acceptor, send: Send, *, margin: float) -> Preview:
    """Raises what `Acceptor.accept` would raise for this send. `margin`: how long before its end, in seconds, a window
    counts as closed."""
    item = await acceptor.prepare(send)
    if item.refusal is not None and item.refusal.status != 409:
        raise item.refusal
    currency = None if item.number is None else item.number.currency
    standing = await conn.fetchrow(STANDING, send.actor.organization_id, send.to, send.number_id, margin, currency)
    assert standing is not None
    if standing["since"] is not None:
        raise RecipientOptedOut(since=iso(standing["since"]))
    if item.refusal is not None:
        raise item.refusal
    assert item.number is not None
    is_live = send.actor.mode == "live"
    if is_live and isinstance(send.content, TextReply) and not standing["is_open"]:
        expires = standing["expires_at"]
        raise WindowClosed(serviceWindowExpiresAt=iso(expires) if expires else None)
    price = 0 if not is_live or standing["is_free"] else item.price
    if price > 0 and price > standing["available"]:  # free messages are sent whatever the balance
        raise WalletInsufficientFunds(
            available=decimal(standing["available"]), required=decimal(price), currency=item.number.currency
        )
    return Preview(item.number.currency, price, standing["available"])
