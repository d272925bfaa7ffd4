"""Number look-ups from the supplier's side, each following its public documentation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import msgspec

from heliograph.http.heads import RequestHead
from heliograph.simulators.http import Reply


class Lookup(msgspec.Struct, frozen=True):
    """One supplier's API."""

    #: (head, body, the account's secret) → numbers (digits); None if it is no look-up or the secret is wrong.
    read: Callable[[RequestHead, bytes, str], list[str] | None]
    #: The response, given each number's network: "64304"; empty if unknown.
    answer: Callable[[Mapping[str, str]], Reply]


def _infobip_read(head: RequestHead, body: bytes, secret: str) -> list[str] | None:
    key = dict(head.headers).get(b"authorization", b"").decode("latin-1")
    if head.method != "POST" or head.path != "/number/1/query" or key != f"App {secret}":
        return None
    return [str(one) for one in json.loads(body)["to"]]


def _infobip_answer(networks: Mapping[str, str]) -> Reply:
    found = []
    for number, network in networks.items():
        group = (3, "DELIVERED", 5, "DELIVERED_TO_HANDSET") if network else (2, "UNDELIVERABLE", 9, "UNDELIVERABLE")
        status = dict(zip(("groupId", "groupName", "id", "name"), group, strict=True))
        said = {"mccMnc": network, "ported": False} if network else {}
        found.append({"to": number, "originalNetwork": {}, "roaming": False, "status": status} | said)
    return Reply(200, json.dumps({"results": found}).encode())


#: By the name of the profile.
LOOKUPS = {"infobip": Lookup(_infobip_read, _infobip_answer)}
