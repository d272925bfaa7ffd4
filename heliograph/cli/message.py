"""`heliograph message`: what became of a message."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from heliograph.base.db import Connection
from heliograph.base.errors import NotFound
from heliograph.cli.console import DataDir, Json, as_plain, cell, group, on_database, record, settings_of, show, table
from heliograph.sms import timeline
from heliograph.webhooks.story import Timeline
from heliograph.whatsapp import timeline as whatsapp_timeline

app = group("Messages: what became of one.")


@app.command("show")
def show_(
    id: Annotated[UUID, typer.Argument(metavar="MESSAGE_ID", help="Id of the message, from the answer to its send.")],
    text: Annotated[bool, typer.Option("--text", help="Show also what it says.")] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show everything that happened to a message: attempts, receipts, events and webhook attempts, in order of time.

    For operators: it shows the whole phone number, and what suppliers said. Of a WhatsApp message also Meta's id and
    what it cost.

    \b
    Examples:
      heliograph message show 0199c0de-0000-7000-8000-000000000000
      heliograph message show 0199c0de-0000-7000-8000-000000000000 --text --json
    """

    async def work(conn: Connection) -> Timeline:
        try:
            return await timeline.of_message(conn, id=id, with_text=text)
        except NotFound:
            return await whatsapp_timeline.of_message(conn, id=id, with_text=text)

    found = as_plain(on_database(work, settings_of(data_dir)))
    if not text:
        del found["text"]
    if json:
        show(found, json)
        return
    print(record(found["message"] | ({"text": found["text"]} if text else {})))
    print()
    print(table([[one["at"], one["what"], cell(one["detail"])] for one in found["entries"]], ("at", "what", "detail")))
    for one in found["queued"]:
        print(f"\nqueued: {cell(one)}")
