"""The same send as code for curl, Python, Node and PHP, with a placeholder for the key."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from heliograph.base.database.clock import iso_or_none
from heliograph.pages.requests import Request
from heliograph.sms.accepting.accept import Send
from heliograph.whatsapp.accepting.accept import Send as WhatsAppSend
from heliograph.whatsapp.accepting.accept import TextReply


class Snippet(msgspec.Struct, frozen=True):
    """Code in one language."""

    language: str
    text: str


def of_sms(request: Request, send: Send, *, sender: str | None) -> list[Snippet]:
    """An SMS as code. `sender`: the value of the chosen sender ID."""
    body: dict[str, Any] = {"to": send.to, "message": send.text}
    body |= {
        name: value
        for name, value in (
            ("senderName", sender),
            ("clientReference", send.client_reference),
            ("sendAt", iso_or_none(send.send_at)),
            ("validitySeconds", send.validity_seconds),
            ("deliveryGuarantee", send.guarantee),
            ("class", None if send.traffic_class == "transactional" else send.traffic_class),
        )
        if value is not None
    }
    return snippets(request, "/v1/sms/send", body)


def of_whatsapp(request: Request, send: WhatsAppSend) -> list[Snippet]:
    """A WhatsApp message as code."""
    content = send.content
    body: dict[str, Any] = {"type": "text" if isinstance(content, TextReply) else "template", "to": send.to}
    body["phoneNumberId"] = str(send.number_id)
    if isinstance(content, TextReply):
        body["text"] = {"body": content.body}
    else:
        body["template"] = {
            "name": content.name,
            "language": content.language,
            "category": content.category,
            "parameters": list(content.parameters),
        }
    if send.client_reference is not None:
        body["clientReference"] = send.client_reference
    return snippets(request, "/v1/whatsapp/messages", body)


def snippets(request: Request, path: str, body: Mapping[str, Any]) -> list[Snippet]:
    """A POST with an idempotency key, in four languages; the API key is read from the environment."""
    base = request.services.settings.public_url.rstrip("/") or f"http://{request.host}"
    said = json.dumps(body, ensure_ascii=False)
    curl = (
        f"curl -sS {shlex.quote(base + path)} \\\n"
        '  -H "authorization: Bearer $HELIOGRAPH_API_KEY" \\\n'
        '  -H "idempotency-key: $(uuidgen)" \\\n'
        "  -H 'content-type: application/json' \\\n"
        f"  -d {shlex.quote(said)}"
    )
    python = (
        "import os, uuid, requests\n\n"
        "answer = requests.post(\n"
        f'    "{base}{path}",\n'
        "    headers={\n"
        '        "authorization": f"Bearer {os.environ[\'HELIOGRAPH_API_KEY\']}",\n'
        '        "idempotency-key": str(uuid.uuid4()),\n'
        "    },\n"
        f"    json={_indented(body, 4)},\n"
        ")\n"
        "answer.raise_for_status()\n"
        'print(answer.json()["message"]["id"])'
    )
    node = (
        f'const answer = await fetch("{base}{path}", {{\n'
        '  method: "POST",\n'
        "  headers: {\n"
        "    authorization: `Bearer ${process.env.HELIOGRAPH_API_KEY}`,\n"
        '    "idempotency-key": crypto.randomUUID(),\n'
        '    "content-type": "application/json",\n'
        "  },\n"
        f"  body: JSON.stringify({_indented(body, 2)}),\n"
        "});\n"
        "console.log((await answer.json()).message.id);"
    )
    php = (
        "<?php\n"
        f"$request = curl_init({_in_php(base + path)});\n"
        "curl_setopt_array($request, [\n"
        "    CURLOPT_RETURNTRANSFER => true,\n"
        "    CURLOPT_FAILONERROR => true,\n"
        "    CURLOPT_HTTPHEADER => [\n"
        "        'authorization: Bearer ' . getenv('HELIOGRAPH_API_KEY'),\n"
        "        'idempotency-key: ' . bin2hex(random_bytes(16)),\n"
        "        'content-type: application/json',\n"
        "    ],\n"
        f"    CURLOPT_POSTFIELDS => json_encode({_in_php(body, 4)}),\n"
        "]);\n"
        "$answer = json_decode(curl_exec($request), true, 512, JSON_THROW_ON_ERROR);\n"
        "echo $answer['message']['id'];"
    )
    return [Snippet("curl", curl), Snippet("Python", python), Snippet("Node.js", node), Snippet("PHP", php)]


def _in_php(value: Any, by: int = 0) -> str:
    """A text, a number, or a list or mapping of them in PHP syntax; single quotes, in which nothing is interpolated."""
    inner, outer = " " * (by + 4), " " * by
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(value, Mapping):
        rows = [f"{inner}{_in_php(name)} => {_in_php(one, by + 4)},\n" for name, one in value.items()]
        return "[\n" + "".join(rows) + outer + "]"
    if isinstance(value, list):
        return "[" + ", ".join(_in_php(one, by + 4) for one in value) + "]"
    return json.dumps(value)


def _indented(body: Mapping[str, Any], by: int) -> str:
    """An indented literal: texts, numbers and lists of them have the same syntax in Python and JavaScript."""
    return json.dumps(body, ensure_ascii=False, indent=by).replace("\n", "\n" + " " * by)
