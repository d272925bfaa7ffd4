"""Offering an authenticator app: the key as a QR code and as text, sealed in the form until its first code is right."""

from __future__ import annotations

import io
from typing import Any

import segno

from heliograph.base.crypto import Unsealable, seal, unseal
from heliograph.pages.requests import Request
from heliograph.people import factors


def offer(request: Request, secret: str) -> dict[str, Any]:
    """Values of the form."""
    person = request.session
    assert person is not None
    drawn = io.BytesIO()
    address = factors.address(secret, email=person.email)
    segno.make(address, error="m").save(drawn, kind="svg", border=2, xmldecl=False, svgns=True, omitsize=True)
    sealed = seal(request.services.factor_key, secret.encode(), f"offer/{person.user_id}")
    grouped = " ".join(secret[at : at + 4] for at in range(0, len(secret), 4))
    return {"qr": drawn.getvalue().decode(), "secret": grouped, "sealed": sealed.hex()}


def offered(request: Request) -> str | None:
    """The key that the form was made with; None if it is not ours."""
    assert request.session is not None
    try:
        sealed = bytes.fromhex(request.form.get("sealed", ""))
        return unseal(request.services.factor_key, sealed, f"offer/{request.session.user_id}").decode()
    except (ValueError, Unsealable):
        return None
