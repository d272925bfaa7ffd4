"""Setting up an authenticator app: the key as QR code and text, sealed in the form until its first code is correct.

The rule nobody may break: operators set up factors in the console only. The dashboard accepts a password alone from
people without an app, and a factor set up there would open the console.
"""

from __future__ import annotations

import io
from typing import Any

import segno

from heliograph.base.crypto import Unsealable, seal, unseal
from heliograph.base.database.pool import Connection
from heliograph.pages.answers import Answer, Redirect
from heliograph.pages.people import own_account
from heliograph.pages.realms import CONSOLE
from heliograph.pages.requests import Request
from heliograph.people import factors
from heliograph.people.operators import accounts


def offer(request: Request, secret: str) -> dict[str, Any]:
    """Values for the form."""
    person = request.session
    assert person is not None
    drawn = io.BytesIO()
    address = factors.address(secret, email=person.email)
    segno.make(address, error="m").save(drawn, kind="svg", border=2, xmldecl=False, svgns=True, omitsize=True)
    sealed = seal(request.services.factor_key, secret.encode(), f"offer/{person.user_id}")
    grouped = " ".join(secret[at : at + 4] for at in range(0, len(secret), 4))
    return {"qr": drawn.getvalue().decode(), "secret": grouped, "sealed": sealed.hex()}


def offered(request: Request) -> str | None:
    """The key contained in the form; None if it is not ours."""
    assert request.session is not None
    try:
        sealed = bytes.fromhex(request.form.get("sealed", ""))
        return unseal(request.services.factor_key, sealed, f"offer/{request.session.user_id}").decode()
    except (ValueError, Unsealable):
        return None


async def refused_here(request: Request, conn: Connection) -> Answer | None:
    """A redirect to the account for an operator outside the console; None for everybody else, who do not become one
    before the caller's transaction ends. `conn`: for writes, since a standby may not know about a new operator yet."""
    if request.realm is CONSOLE or not await accounts.is_one(conn, user_id=request.user_id):
        return None
    said = request.text("You are an operator: set up authenticator apps and passkeys in the console.")
    return Redirect(location=own_account.here(request), notice=said, is_refusal=True)
