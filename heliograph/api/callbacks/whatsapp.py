"""Callbacks from Meta: `/in/whatsapp/{app}`. GET is the handshake; a POST should be answered within 250 ms."""

from __future__ import annotations

import re
import urllib.parse
from uuid import UUID

from heliograph.api.callbacks.door import Answer, Call, CallbackHandler, nowhere
from heliograph.api.shapes.refusals import MethodNotAllowed
from heliograph.base.ids import uuid_of_text
from heliograph.suppliers.whatsapp_cloud.callbacks.webhooks import is_signature
from heliograph.whatsapp.callbacks.intake import CallbackIntake, NotGenuine

PREFIX = "/in/whatsapp/"

_path = re.compile(r"/in/whatsapp/([0-9a-fA-F-]{36})").fullmatch


def handler(intake: CallbackIntake, *, max_bytes: int) -> CallbackHandler:
    """`max_bytes`: limit for one callback."""

    async def answer(call: Call) -> Answer:
        app_id = _app_id(call.path)
        if call.method == "GET":
            query = dict(urllib.parse.parse_qsl(call.query.decode("latin-1"), errors="replace"))
            greeting = await intake.greet(app_id, query, is_guess=call.is_guess)
            return Answer(greeting.encode("utf-8", "replace"))
        if call.method != "POST":
            raise MethodNotAllowed("GET, POST")
        signature = call.headers.get(b"x-hub-signature-256")
        is_signed = is_signature(signature)
        app = await intake.app(app_id, is_guess=call.is_guess or not is_signed)
        if not is_signed:
            await intake.refused(app)
            raise NotGenuine
        await call.body(lambda body: intake.take(app, body, signature), max_bytes)
        return Answer()

    return CallbackHandler(PREFIX, answer)


def _app_id(path: str) -> UUID:
    match = _path(path)
    try:
        return uuid_of_text(match[1] if match else "")
    except ValueError:
        raise nowhere(path) from None
