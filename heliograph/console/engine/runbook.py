"""The runbook's sections about checks that are not ok.

The guide is served by this same process, so it can be read without any other network access.
"""

from __future__ import annotations

from collections.abc import Mapping

from heliograph.base.sentences import english

PAGE = "/guide/runbook"
#: Sections by check name; a check that is also an alert has the alert's. A test compares them all.
SECTIONS: Mapping[str, str] = {
    "database": "check-database",
    "encryption": "check-encryption",
    "durability": "check-durability",
    "disk": "check-disk",
    "clocks": "check-clocks",
    "migrations": "check-migrations",
    "speed of the database": "check-speed-of-the-database",
    "snapshots": "heliographoldsnapshot",
    "vacuum": "check-vacuum",
    "standby": "heliographstandbyunread",
    "certificates": "check-certificates",
    "certificate of %(whose)s": "check-certificates",
    "roles": "check-roles",
    "partitions": "heliographpartitionsmissing",
    "workers": "heliographnoworker",
    "secret keys": "check-secret-keys",
    "queue": "heliographqueuelate",
    "holds": "heliographheld",
    "backups": "heliographbackupold",
    "WAL archive": "check-wal-archive",
    "webhooks": "heliographwebhooksfailing",
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
    """The address of the section for a check, or of the page if it has none."""
    section = SECTIONS.get(english(name))
    return f"{PAGE}#{section}" if section else PAGE
