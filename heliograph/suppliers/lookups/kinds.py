"""All kinds of look-up supplier, and the client that queries one.

Kinds are found by their modules: each one in `by_name/` provides a `KIND`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from heliograph.base.network.addresses import parse_networks
from heliograph.http.answers import READ_BYTES, Failure
from heliograph.http.client import ClientRules, HttpClient
from heliograph.suppliers.http.kind import Answer, secrets_of
from heliograph.suppliers.lookups import by_name
from heliograph.suppliers.lookups.kind import LookupAnswer, LookupKind, LookupSettings
from heliograph.suppliers.settings import checked

log = structlog.get_logger()

#: Suppliers are chosen by operators, so they may be on this machine or behind a VPN.
_ANYWHERE = parse_networks("0.0.0.0/0,::/0")


def _found() -> dict[str, LookupKind]:
    names = [one.name for one in pkgutil.iter_modules(by_name.__path__, f"{by_name.__name__}.")]
    found: list[LookupKind] = [importlib.import_module(name).KIND for name in names]
    return {one.name: one for one in found}


#: By name.
KINDS: Mapping[str, LookupKind] = _found()


def settings_from(kind: str, values: Mapping[str, Any]) -> LookupSettings:
    """Settings as stored. Raises SettingsError, which names the field."""
    return checked(KINDS[kind].settings, values)


class LookupClient:
    """One account at a look-up supplier."""

    def __init__(self, kind: str, settings: LookupSettings, secret: str) -> None:
        """`secret`: its secrets, as sealed together."""
        self._kind, self._settings, self._secrets = KINDS[kind], settings, secrets_of(secret)
        self.most = min(self._kind.most, settings.batch)
        self._client = HttpClient(
            ClientRules(
                seconds=settings.response_seconds,
                connect_seconds=settings.response_seconds,
                per_destination=1 << 30,
                allow_http=True,
                networks=_ANYWHERE,
                kept=READ_BYTES,
                decodes=True,
            )
        )

    async def ask(self, numbers: Sequence[str], *, wanted: Callable[[], bool] = lambda: True) -> LookupAnswer:
        """Look up numbers (digits), at most `most` of them. On any failure the answer is empty, with the reason.
        `wanted`: whether they are still to be looked up, asked right before the first byte (`HttpClient.post`)."""
        try:
            made = self._kind.request(self._settings, self._secrets, numbers)
            found = await self._client.request(made.method, made.url, made.body, made.headers, wanted=wanted)
            if isinstance(found, Failure):
                return LookupAnswer({}, f"{found.kind}: {found.detail}".rstrip(": "))
            return self._kind.answer(self._settings, numbers, Answer(found.status, found.body, found.retry_after))
        except Exception as error:  # a supplier's module failed on an answer
            log.exception("look-up not understood", kind=self._kind.name, error=type(error).__name__)
            return LookupAnswer({}, f"not understood: {type(error).__name__}")

    async def close(self) -> None:
        """Close its connections."""
        await self._client.close()
