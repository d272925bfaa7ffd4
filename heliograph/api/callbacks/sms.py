"""Callbacks from HTTP suppliers: `/in/sms/{supplier}/{token}/receipts` and `/inbound`, by POST or GET."""

from __future__ import annotations

import re
from functools import lru_cache
from uuid import UUID

from heliograph.api.callbacks.door import Answer, Call, CallbackHandler, nowhere
from heliograph.api.shapes.refusals import MethodNotAllowed, PayloadTooLarge, UnsupportedMediaType
from heliograph.http import codings
from heliograph.sms.callbacks.addresses import INBOUND, PREFIX, RECEIPTS
from heliograph.sms.callbacks.intake import SupplierCallbacks
from heliograph.suppliers.http.kind import Callback

#: Maximum bytes of a callback: a hundred receipts with everything that a supplier reports about each.
MOST = 1_048_576
#: Headers needed to verify or interpret a callback.
SIGNING = re.compile(rb"authorization|content-type|.*signature.*|.*timestamp.*|.*nonce.*|x-.*").fullmatch


@lru_cache(maxsize=256)
def _signs(name: bytes) -> bool:
    """Cached: a supplier uses the same names in every callback."""
    return SIGNING(name) is not None


_path = re.compile(rf"{PREFIX}([0-9a-fA-F-]{{36}})/([A-Za-z0-9_-]{{8,64}})/({RECEIPTS}|{INBOUND})").fullmatch


def handler(intake: SupplierCallbacks, *, public_url: str) -> CallbackHandler:
    """`public_url`: where suppliers reach this service, which is what they sign."""

    async def answer(call: Call) -> Answer:
        match = _path(call.path)
        try:
            supplier_id = UUID(match[1] if match else "")
        except ValueError:
            raise nowhere(call.path) from None
        assert match is not None
        if call.method not in ("GET", "POST"):
            raise MethodNotAllowed("GET, POST")
        known = await intake.account(supplier_id, match[2])
        base = public_url.rstrip("/") or f"http://{call.headers.get(b'host', b'').decode('latin-1')}"
        query = call.query.decode("latin-1")
        url = f"{base}{call.path}" + (f"?{query}" if query else "")
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in call.headers.items()
            if _signs(name) or name.decode("latin-1") in known.headers
        }

        coding = call.headers.get(b"content-encoding", b"").decode("latin-1")

        async def take(body: bytes | bytearray) -> Answer:
            try:
                # Signatures are made over the content, before whatever sends it compresses it.
                content = codings.whole(bytes(body), coding, MOST)
            except codings.TooLarge:
                raise PayloadTooLarge(MOST) from None
            except codings.CannotDecode:
                raise UnsupportedMediaType from None
            callback = Callback(call.method, url, headers, content)
            reply = await intake.take(known, match[3], callback, address=call.address)
            return Answer(reply.body, reply.kind)

        taken: Answer = await call.body(take, MOST)
        return taken

    return CallbackHandler(PREFIX, answer)
