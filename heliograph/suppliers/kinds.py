"""Every kind of SMS supplier there is: what an operator may add, and how a worker reaches it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from heliograph.suppliers.contract import Account, Connector, ConnectorFactory, OnInbound, OnOutcome, OnReceipts
from heliograph.suppliers.http import connector as http
from heliograph.suppliers.http.by_name import africastalking, clickatell, generic, infobip, twilio, vonage
from heliograph.suppliers.http.kind import HttpKind
from heliograph.suppliers.settings import checked
from heliograph.suppliers.smpp import connector as smpp
from heliograph.suppliers.smpp.settings import SmppSettings

SMPP = "smpp"
#: By name, in the order in which they are shown.
HTTP: Mapping[str, HttpKind] = {
    one.KIND.name: one.KIND for one in (africastalking, clickatell, infobip, twilio, vonage, generic)
}
#: The settings of each kind.
SETTINGS: Mapping[str, type[msgspec.Struct]] = {SMPP: SmppSettings} | {
    name: kind.settings for name, kind in HTTP.items()
}


def settings_from(kind: str, values: Mapping[str, Any]) -> Any:
    """Settings as stored with a supplier of this kind. Raises SettingsError, which names the field."""
    return checked(SETTINGS[kind], values)


def factories(*, late: float) -> dict[str, ConnectorFactory]:
    """How each kind is connected to. `late`: seconds that the answer to an SMPP submit counts after it was given up."""
    return {SMPP: partial(smpp.connect, late=late)} | {name: partial(_http, kind) for name, kind in HTTP.items()}


def _http(
    kind: HttpKind, account: Account, on_outcome: OnOutcome, on_receipts: OnReceipts, on_inbound: OnInbound
) -> Connector:
    """Receipts and messages of handsets come through the door for callbacks, not through the connector."""
    return http.connect(kind, account, on_outcome)
