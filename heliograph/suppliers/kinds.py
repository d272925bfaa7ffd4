"""All kinds of SMS supplier: those that an operator may add, and how a worker connects to each.

HTTP suppliers are found by their modules: each one in `http/by_name/` provides a `KIND`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import msgspec

from heliograph.base.sentences import Sentence, quoted
from heliograph.suppliers.contract import (
    Account,
    Connector,
    ConnectorFactory,
    LostUntil,
    OnInbound,
    OnOutcome,
    OnReceipts,
    RebuiltRequest,
    Submission,
)
from heliograph.suppliers.http import by_name, generic
from heliograph.suppliers.http import connector as http
from heliograph.suppliers.http.kind import HttpKind
from heliograph.suppliers.settings import checked
from heliograph.suppliers.smpp import connector as smpp
from heliograph.suppliers.smpp import rebuilding, tls
from heliograph.suppliers.smpp.codec import texts
from heliograph.suppliers.smpp.settings import SmppSettings

SMPP = "smpp"
GENERIC = generic.KIND.name
#: Kinds whose requests can be reconstructed, octet by octet.
REBUILT = (SMPP,)


def _found() -> dict[str, HttpKind]:
    """Kinds with a module, by name, and the configurable kind, which is shown last."""
    names = [one.name for one in pkgutil.iter_modules(by_name.__path__, f"{by_name.__name__}.")]
    found: list[HttpKind] = [importlib.import_module(name).KIND for name in names]
    return {one.name: one for one in [*sorted(found, key=lambda one: one.name), generic.KIND]}


#: By name, in the order in which they are shown.
HTTP: Mapping[str, HttpKind] = _found()
#: The settings of each kind.
SETTINGS: Mapping[str, type[msgspec.Struct]] = {SMPP: SmppSettings} | {
    name: kind.settings for name, kind in HTTP.items()
}


@cache
def fields(kind: str) -> tuple[msgspec.structs.FieldInfo, ...]:
    """The settings of a kind, in the order of its struct. Cached: reading annotations takes 10 ms."""
    return msgspec.structs.fields(SETTINGS[kind])


def settings_from(kind: str, values: Mapping[str, Any]) -> Any:
    """Settings as stored with a supplier of this kind. Raises SettingsError, which names the field."""
    return checked(SETTINGS[kind], values)


def unusable(kind: str, values: Mapping[str, Any]) -> Sentence:
    """Why workers open no session with these settings, whatever the supplier does, because of a file that they name;
    "": they try. Reads the files, as of this machine."""
    return tls.unusable(values) if kind == SMPP else quoted("")


def factories(*, late: float, lost_until: LostUntil) -> dict[str, ConnectorFactory]:
    """The connector factory of each kind. `late`: seconds that an SMPP answer still counts after its submit timed
    out."""
    over_smpp = partial(smpp.connect, late=late, lost_until=lost_until)
    return {SMPP: over_smpp, **{name: partial(_http, kind, lost_until) for name, kind in HTTP.items()}}


def read(kind: str, settings: Mapping[str, Any], body: bytes, form: str) -> str | None:
    """The text of a handset's message whose parts have been joined; None if it has none. `settings`: as stored with its
    supplier. Over HTTP, messages arrive as text, which has no form."""
    if not form:
        return body.decode("utf-8", "replace").replace("\0", "\ufffd")
    return texts.read(body, form, texts.alphabet_of(settings)) if kind == SMPP else None


def rebuilt(kind: str, settings: Mapping[str, Any], submission: Submission) -> list[RebuiltRequest]:
    """The requests that a supplier of this kind was sent in one attempt, reconstructed; empty: none, or not possible
    for its kind. `settings`: as stored with it. Raises SettingsError."""
    return rebuilding.submits(settings_from(kind, settings), submission) if kind in REBUILT else []


def _http(
    kind: HttpKind,
    lost_until: LostUntil,
    account: Account,
    on_outcome: OnOutcome,
    on_receipts: OnReceipts,
    on_inbound: OnInbound,
) -> Connector:
    """Receipts and handsets' messages arrive through the callback door, not through the connector."""
    return http.connect(kind, account, on_outcome, lost_until=lost_until)
