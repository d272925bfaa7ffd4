"""The outcome of a send: scripts, chosen by recipient.

A script is chosen by, in this order: the recipient's whole number or its longest ending registered with `Scripts.set`;
the last four digits (`MAGIC`: 0000 to 0013 as with the simulated SMSC, 9001 to 9023 for what only WhatsApp does) of a
number that begins with the option `magic`; the default. The rule nobody may break: a script says what Meta would do,
never what a client should make of it.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from heliograph.simulators.graph.options import GraphOptions

Answer = Literal["normal", "drop", "hang", "drip", "html", "empty"]


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A planned status: sent, delivered, read, played or failed."""

    status: str
    #: Meta's error code, for a failure.
    code: int = 0
    #: Seconds after the previous one; None means the option `status_delay`.
    after: float | None = None


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The outcome of one send."""

    steps: tuple[Step, ...] = ()
    #: Refused at once with this code; 0 means not refused.
    refuse: int = 0
    #: The form of the response. With drop and hang the message is still sent, unless `lost`.
    answer: Answer = "normal"
    #: The request is read and discarded: the message is not sent.
    lost: bool = False
    #: HTTP status of the responses html and empty.
    http: int = 503
    message_status: str = "accepted"
    #: The first status comes before the response.
    early: bool = False
    #: Each status comes twice.
    twice: bool = False
    #: Extra seconds before the first status.
    wait: float = 0.0
    #: The status with the price; empty means the option `pricing_on`.
    pricing_on: str = ""
    #: The format from before July 2025: CBP and `conversation`.
    old: bool = False
    #: Whether statuses have `contacts`; None means as the option says.
    contacts: bool | None = None
    #: The script applies to this many sends to a recipient, then the default does; 0 means always.
    times: int = 0


def _steps(*statuses: str | Step) -> tuple[Step, ...]:
    return tuple(Step(one) if isinstance(one, str) else one for one in statuses)


_HAPPY = _steps("sent", "delivered", "read")

SCRIPTS: dict[str, Script] = {
    "happy": Script(steps=_HAPPY),
    "undeliverable": Script(steps=_steps(Step("failed", 131026))),
    "read_without_delivered": Script(steps=_steps("sent", "read")),
    "sent_only": Script(steps=_steps("sent")),
    "silent": Script(),
    "late": Script(steps=_HAPPY, wait=60.0),
    "twice": Script(steps=_HAPPY, twice=True),
    "early": Script(steps=_HAPPY, early=True),
    "refused": Script(refuse=131009),
    "pair_limited": Script(refuse=131056),
    "server_error": Script(refuse=131000),
    "unanswered": Script(steps=_HAPPY, answer="hang"),
    "lost": Script(answer="hang", lost=True),
    "dropped": Script(steps=_HAPPY, answer="drop"),
    "dropped_lost": Script(answer="drop", lost=True),
    "failed_after_sent": Script(steps=_steps("sent", Step("failed", 131026))),
    "delivered_after_failed": Script(steps=_steps("sent", Step("failed", 131026), "delivered")),
    "failed_after_delivered": Script(steps=_steps("sent", "delivered", Step("failed", 131026))),
    "delivered": Script(steps=_steps("sent", "delivered")),
    "backwards": Script(steps=_steps("read", "delivered", "sent")),
    "held": Script(steps=_HAPPY, message_status="held_for_quality_assessment", wait=5.0),
    "held_failed": Script(steps=_steps(Step("failed", 132015)), message_status="held_for_quality_assessment", wait=5.0),
    "paused": Script(message_status="paused"),
    "ecosystem": Script(steps=_steps(Step("failed", 131049))),
    "experiment": Script(steps=_steps(Step("failed", 130472))),
    "unpaid": Script(steps=_steps(Step("failed", 131042))),
    "window_closed": Script(steps=_steps(Step("failed", 131047))),
    "priced_late": Script(steps=_HAPPY, pricing_on="delivered"),
    "priced_twice": Script(steps=_HAPPY, pricing_on="both"),
    "unpriced": Script(steps=_HAPPY, pricing_on="none"),
    "old_shape": Script(steps=_HAPPY, old=True),
    "without_contacts": Script(steps=_HAPPY, contacts=False),
    "html": Script(answer="html", lost=True),
    "empty": Script(answer="empty", lost=True),
    "drip": Script(steps=_HAPPY, answer="drip"),
    "throttled_once": Script(refuse=130429, times=1),
    "blocked": Script(refuse=130403),
}

#: The last four digits of a recipient that begins with the option `magic`, and the script they select.
MAGIC: dict[str, str] = {
    "0000": "happy",
    "0001": "undeliverable",
    "0002": "read_without_delivered",
    "0003": "sent_only",
    "0004": "silent",
    "0005": "late",
    "0006": "twice",
    "0007": "early",
    "0008": "refused",
    "0009": "pair_limited",
    "0010": "server_error",
    "0011": "unanswered",
    "0012": "lost",
    "0013": "dropped",
    "9001": "failed_after_sent",
    "9002": "delivered_after_failed",
    "9003": "failed_after_delivered",
    "9004": "delivered",
    "9005": "backwards",
    "9006": "held",
    "9007": "held_failed",
    "9008": "paused",
    "9009": "ecosystem",
    "9010": "experiment",
    "9011": "unpaid",
    "9012": "window_closed",
    "9013": "priced_late",
    "9014": "priced_twice",
    "9015": "unpriced",
    "9016": "old_shape",
    "9017": "without_contacts",
    "9018": "html",
    "9019": "empty",
    "9020": "drip",
    "9021": "throttled_once",
    "9022": "dropped_lost",
    "9023": "blocked",
}


def script_of(given: Script | str | dict[str, Any] | list[str]) -> Script:
    """A script given by name, as a list of statuses (`failed:131026`), as JSON, or as itself. Raises ValueError."""
    if isinstance(given, Script):
        return given
    if isinstance(given, str):
        if given not in SCRIPTS:
            raise ValueError(f"no script is called {given!r}")
        return SCRIPTS[given]
    if isinstance(given, list):
        return Script(
            steps=tuple(Step(name, int(code or 0)) for name, _, code in (one.partition(":") for one in given))
        )
    return msgspec.convert(given, Script)


class Scripts:
    """Chooses the script for a recipient."""

    def __init__(self, options: GraphOptions) -> None:
        self.configure(options)
        self._chosen: dict[str, Script] = {}
        self._lengths: list[int] = []
        self._used: dict[tuple[str, str], int] = {}

    def configure(self, options: GraphOptions) -> None:
        self.default = script_of(options.default_script)
        self._magic = {end: SCRIPTS[name] for end, name in MAGIC.items()} if options.magic else {}
        self._prefix = options.magic

    def set(self, ending: str, script: Script | None) -> None:
        """Use this script for recipients with this ending, which may be a full number. None removes it."""
        if script is None:
            self._chosen.pop(ending, None)
        else:
            self._chosen[ending] = script
        self._used = {key: count for key, count in self._used.items() if key[0] != ending}
        self._lengths = sorted({len(one) for one in self._chosen}, reverse=True)

    def clear(self) -> None:
        self._chosen.clear()
        self._lengths.clear()
        self._used.clear()

    def choose(self, digits: str) -> Script:
        """The script for a send to these digits; uses up one of its `times`."""
        for length in self._lengths:
            ending = digits[-length:]
            script = self._chosen.get(ending)
            if script is not None:
                return script if self._counts(script, ending, digits) else self.default
        script = self._magic.get(digits[-4:]) if digits.startswith(self._prefix) else None
        if script is None:
            return self.default
        return script if self._counts(script, digits[-4:], digits) else self.default

    def _counts(self, script: Script, ending: str, digits: str) -> bool:
        if not script.times:
            return True
        used = self._used[ending, digits] = self._used.get((ending, digits), 0) + 1
        return used <= script.times
