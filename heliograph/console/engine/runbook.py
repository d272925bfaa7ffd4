"""Where the runbook has what is to be done about a check that is not well.

The guide is served by this very process, so whoever has no network but to it can read on.
"""

from __future__ import annotations

from collections.abc import Mapping

from heliograph.base.sentences import english

PAGE = "/guide/runbook"
#: Sections by the names of checks. What an alert is about as well has the alert's; a test compares all of them.
SECTIONS: Mapping[str, str] = {
    "database": "check-database",
    "encryption": "check-encryption",
    "durability": "check-durability",
    "disk": "check-disk",
    "clocks": "check-clocks",
    "migrations": "check-migrations",
    "speed of the database": "check-speed-of-the-database",
    "standby": "heliographstandbyunread",
    "certificates": "check-certificates",
    "certificate of %(whose)s": "check-certificates",
    "roles": "check-roles",
    "partitions": "heliographpartitionsmissing",
    "workers": "heliographnoworker",
    "queue": "heliographqueuelate",
    "holds": "heliographheld",
    "backups": "heliographbackupold",
    "archive of WAL": "check-archive-of-wal",
    "mail": "check-mails",
    "mails": "check-mails",
    "sign-ins": "check-sign-ins",
    "suppliers": "check-suppliers",
    "supplier %(name)s": "heliographsupplierdown",
    "receipts of %(name)s": "check-receipts",
    "answers of %(name)s": "check-answers",
    "guard": "check-guard",
    "inbox": "check-inbox",
    "sealed texts": "check-sealed-texts",
    "whatsapp": "check-whatsapp",
    "whatsapp %(id)s": "check-whatsapp",
    "whatsapp %(id)s warnings": "check-whatsapp",
    "callbacks": "heliographcallbackswaiting",
}


def address(name: str) -> str:
    """Where a check of this name has its section; where it has none, the page."""
    section = SECTIONS.get(english(name))
    return f"{PAGE}#{section}" if section else PAGE
