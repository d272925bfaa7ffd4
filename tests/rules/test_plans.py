"""Statements that are prepared on empty tables keep good plans once there are rows: each finds its rows by complete
keys, and reads no more of a table than it needs.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from heliograph.accounts.api_keys import keyring
from heliograph.base.database import pulse
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.campaigns import audience, staging
from heliograph.campaigns.approval import lapses
from heliograph.campaigns.channels import whatsapp as whatsapp_channel
from heliograph.campaigns.views import recipients
from heliograph.consent import history, optouts, people, skipped
from heliograph.contacts import importing, marked, recency, records, tags, undoing
from heliograph.guard import holds as guard_holds
from heliograph.mail import outbox
from heliograph.networks import asked
from heliograph.notices import conditions
from heliograph.overview.exports import references
from heliograph.overview.searching import everywhere, finding
from heliograph.privacy import answers, erasure, holdings
from heliograph.queue import leases
from heliograph.retention import shorter
from heliograph.sending import attempts as sending
from heliograph.sending import timeline as timelines
from heliograph.sms import status as sms_status
from heliograph.sms.dispatch import claimed as sms_claimed
from heliograph.sms.dispatch import outcomes
from heliograph.sms.reports import parts, receipts, receipts_without_id
from heliograph.traffic import reading as traffic
from heliograph.webhooks import figures as webhook_figures
from heliograph.webhooks import history as webhook_history
from heliograph.webhooks import replays, timeline
from heliograph.webhooks.delivery import attempts
from heliograph.webhooks.recording import events, judging, successes
from heliograph.webhooks.recording import results as recording
from heliograph.whatsapp import status
from heliograph.whatsapp.callbacks import conversations, matching, opt_out_words
from heliograph.whatsapp.callbacks.processing import routing
from heliograph.whatsapp.dispatch import claimed, holds, parking
from heliograph.whatsapp.mirror import numbers, template_sync, templates
from heliograph.whatsapp.money import rates, wallet

pytestmark = pytest.mark.fresh_database

#: Each statement, and for each of its tables the columns that its index condition has to bind.
STATEMENTS = {
    "campaigns that ask for another approval": (lapses.LAPSED, {"notices": "organization_id kind object"}),
    "campaigns that ask for an approval": (lapses.ASKED, {"notices": "organization_id kind object"}),
    "keys that were used, from new networks": (
        keyring.TOUCH,
        {"api_keys": "id", "notices": "organization_id kind object created_at"},
    ),
    "the last attempts of messages": (leases.LAST_ATTEMPTS, {"queue": "id"}),
    "days above their alert": (conditions.DAYS, {"notices": "organization_id kind object"}),
    "endpoints that fail again": (conditions.FAILING, {"notices": "organization_id kind object created_at"}),
    "campaigns that stalled again": (conditions.STALLED, {"notices": "organization_id kind object created_at"}),
    "wallets that fell below their alert": (
        conditions.WALLETS,
        {"notices": "organization_id kind object created_at"},
    ),
    "mails that wait for somebody": (outbox.DROP, {"mails": "subject_id"}),
    "notices that wait for somebody": (outbox.DROP_NOTICES, {"mails": "subject_id"}),
    "who may be written to free of charge": (whatsapp_channel.FREE, {"whatsapp_conversations": "referred_at"}),
    "who of a campaign was not sent to": (
        whatsapp_channel.UNSENT,
        {"attempts": "organization_id message_id", "whatsapp_messages": "organization_id id"},
    ),
    "the next recipients": (
        audience.NEXT,
        {"opt_outs": "organization_id person", "person_names": "organization_id name|person"},
    ),
    "the next recipients with their names": (
        audience.NEXT_WITH_CONTACT,
        {
            "opt_outs": "organization_id person",
            "person_names": "organization_id name|person",
            "contacts": "organization_id mode phone",
        },
    ),
    "the next recipients by when they were written to": (
        audience.NEXT_BY_RECENCY,
        {"opt_outs": "organization_id person", "contacts": "organization_id mode phone"},
    ),
    "the next campaign whose step is due": (staging.TAKE, {"campaigns": "organization_id step_at"}),
    "who was erased since a campaign": (recipients.ERASED["sms"], {"messages": "organization_id id"}),
    "who was erased since a campaign on WhatsApp": (
        recipients.ERASED["whatsapp"],
        {"whatsapp_messages": "organization_id id"},
    ),
    "who a campaign skipped for a reason": (
        skipped.LIST,
        {"campaign_skipped": "organization_id campaign_id reason id", "contacts": "organization_id mode phone"},
    ),
    "for which reasons a campaign skipped": (
        skipped.FOUND,
        {"campaign_skipped": "organization_id campaign_id reason"},
    ),
    "texts that campaigns skipped, of a person": (
        erasure.SKIPPED,
        {"campaign_skipped": "organization_id id"},
    ),
    "a month's messages by reference": (references.STEPS["sms"], {"messages": "organization_id id"}),
    "a month's WhatsApp messages by reference": (
        references.STEPS["whatsapp"],
        {"whatsapp_messages": "organization_id id"},
    ),
    "a month's refunds by reference": (
        references.STEPS["refunds"],
        {"usage_ledger": "organization_id id", "messages": "organization_id id"},
    ),
    "holds that messages meet": (guard_holds.MEET, {"guard_holds": "organization_id id"}),
    "contacts among suspected numbers": (guard_holds.ACQUAINTED, {"contacts": "organization_id mode phone"}),
    "contacts with a tag": (audience.GATHER_TAGGED, {"contacts": "organization_id mode id"}),
    "contacts that are written": (records.WRITE, {"contacts": "organization_id phone mode"}),
    "contacts as they were before an import": (importing.IMAGES, {"contacts": "organization_id phone mode"}),
    "contacts that an import leaves alone": (
        importing.SAME,
        {"contact_import_images": "organization_id import_id batch"},
    ),
    "contacts that an import lists": (importing.LISTED, {"contacts": "organization_id phone mode"}),
    "contacts that an import wrote": (undoing.HELD, {"contacts": "organization_id mode id"}),
    "what an import made": (
        undoing.DELETE,
        {"contacts": "organization_id mode id", "contact_tags": "organization_id mode tag contact_id"},
    ),
    "what an import changed": (
        undoing.RESTORE,
        {"contacts": "organization_id mode id", "contact_tags": "organization_id mode tag contact_id"},
    ),
    "contacts that are deleted together": (
        marked.DELETE,
        {"contacts": "organization_id mode id", "contact_tags": "organization_id mode tag contact_id"},
    ),
    "opt-outs that are locked": (optouts.HOLD, {"opt_outs": "organization_id person"}),
    "opt-outs that become people's own": (optouts.OWN_WORD, {"opt_outs": "organization_id person"}),
    "opt-outs that are lifted": (optouts.LIFT, {"opt_outs": "organization_id person"}),
    "opt-outs before a word": (optouts.LIFT_EARLIER, {"opt_outs": "organization_id person"}),
    "opt-outs that stand for another reason": (
        optouts.RESTORE,
        {"consent_history": "organization_id person", "opt_outs": "organization_id person"},
    ),
    "messages of answers that moved nothing": (
        outcomes.BESIDES,
        {"messages": "organization_id id", "attempts": "organization_id message_id"},
    ),
    "contacts that another campaign is about to write to": (
        recency.AWAITING,
        {
            "contacts": "organization_id phone mode",
            "campaign_recipients": "organization_id campaign_id phone",
            "campaign_skipped": "organization_id recipient",
        },
    ),
    "campaigns that have staged messages": (recency.STAGED, {"campaigns": "organization_id"}),
    "contacts that were written to": (recency.READ, {"contacts": "organization_id phone mode"}),
    "names that are not linked yet": (people.UNKNOWN, {"person_names": "organization_id name"}),
    "links of names with conversations": (conversations.ALIASED, {"whatsapp_aliases": "organization_id alias"}),
    "numbers that were used since": (
        conversations.USED,
        {"person_names": "organization_id name|person", "whatsapp_aliases": "organization_id alias"},
    ),
    "numbers that people left": (
        people.LEFT,
        {"person_names": "organization_id name", "former_names": "organization_id name"},
    ),
    "opt-outs that end": (history.END, {"consent_history": "organization_id person"}),
    "a page of opt-outs": (optouts.PAGE, {"opt_outs": r"organization_id ROW\(since,\sperson\)"}),
    "whether anybody listed would get it": (
        audience.ANY_LISTED,
        {"opt_outs": "organization_id person", "person_names": "organization_id name|person"},
    ),
    "whether anybody tagged would get it": (
        audience.ANY_TAGGED,
        {
            "opt_outs": "organization_id person",
            "person_names": "organization_id name|person",
            "contacts": "organization_id mode id",
        },
    ),
    "templates of messages that are due": (claimed.TEMPLATES, {"whatsapp_templates": "organization_id id"}),
    "templates by name": (templates.LOAD, {"whatsapp_templates": "organization_id account_id name language"}),
    "first rates": (rates.FIRST, {"whatsapp_rates": "currency category country"}),
    "a template by id": (template_sync.BY_ID, {"whatsapp_templates": "organization_id id"}),
    "a number's hold": (holds.HOLD_NUMBER, {"whatsapp_numbers": "organization_id id"}),
    "a number's row": (numbers.WRITE, {"whatsapp_numbers": "organization_id id"}),
    "messages that are due": (
        claimed.DUE,
        {
            "whatsapp_messages": "organization_id id",
            "attempts": "organization_id message_id",
            "whatsapp_conversations": "organization_id id",
            "opt_outs": "organization_id person",
            "person_names": "organization_id name|person",
        },
    ),
    "when people who came through an advertisement were answered": (
        conversations.FREE,
        {
            "whatsapp_messages": "organization_id id|recipient",
            "whatsapp_conversations": "organization_id id|merged_into",
            "person_names": "organization_id name|person",
        },
    ),
    "numbers that statuses are about, in other accounts": (
        routing.MOVED,
        {"whatsapp_numbers": "organization_id", "whatsapp_accounts": "organization_id"},
    ),
    "messages of statuses": (
        matching.MATCH,
        {"whatsapp_wamids": "number_id wamid born_on", "whatsapp_messages": "organization_id id"},
    ),
    "whether people were last written to by a campaign": (
        opt_out_words.LAST,
        {"whatsapp_messages": "organization_id recipient"},
    ),
    "messages of receipts": (
        receipts.FIND,
        {"attempts": "supplier_message_id target_id", "sms_parts": "id_key supplier_id answered_on"},
    ),
    "messages of receipts without an id": (
        receipts_without_id.CANDIDATES,
        {
            "attempts": "target_id|attempt",
            "sms_parts": "id_key supplier_id",
            "messages": "organization_id id",
        },
    ),
    "series of long messages": (
        sms_claimed.BEGUN,
        {"sms_parts": "message_id", "attempts": "organization_id message_id"},
    ),
    "receipts with one id": (receipts_without_id.SAME_ID, {"receipts": "message_id"}),
    "receipts that blame recipients": (parts.BLAMED, {"receipts": "message_id"}),
    "receipts that stand in their messages": (receipts.NOTED, {"messages": "organization_id id"}),
    "messages that move": (sms_status.MOVE, {"messages": "organization_id id"}),
    "states of messages": (
        status.LOCK,
        {"whatsapp_messages": "organization_id id", "attempts": "organization_id message_id"},
    ),
    "whose templates messages wait for": (
        parking.READY,
        {"queue": "kind line", "whatsapp_templates": "organization_id id"},
    ),
    "deliveries that succeeded at once": (
        successes.STORE,
        # The key begins with the id. The line is written so that no index leads with it, as in `leases.HELD`.
        {"queue": "id", "webhook_endpoints": "organization_id"},
    ),
    "events of claimed rows": (attempts.LOAD, {"events": "organization_id id"}),
    "endpoints of claimed rows": (attempts.DESTINATIONS, {"webhook_endpoints": "organization_id"}),
    "how endpoints do": (judging.JUDGE, {"webhook_endpoints": "organization_id"}),
    "attempts that are recorded": (
        recording.INSERT,
        {"webhook_successes": "organization_id first_event"},
    ),
    "the next numbers of attempts": (
        recording.INSERT_AGAIN,
        {
            "webhook_attempts": "organization_id event_id",
            "webhook_successes": "organization_id first_event",
        },
    ),
    "events of a message": (timelines.EVENTS, {"events": "organization_id id"}),
    "attempts of a message's events": (
        timeline.WEBHOOKS,
        {
            "webhook_attempts": "organization_id event_id",
            "webhook_successes": "organization_id first_event",
            "webhook_endpoints": "organization_id id",
        },
    ),
    "what a replay looks at": (
        replays.LOOK,
        {
            "events": "organization_id id",
            "webhook_successes": "organization_id first_event",
            "webhook_attempts": "organization_id event_id",
        },
    ),
    "an endpoint's attempts": (
        webhook_history.ATTEMPTS,
        {
            "webhook_attempts": "organization_id endpoint_id started_at",
            "webhook_successes": "organization_id endpoint_id started_to",
            "events": "organization_id id",
        },
    ),
    "an endpoint's attempts of some events": (
        webhook_history.OF_EVENTS,
        {"webhook_attempts": "organization_id event_id", "webhook_successes": "organization_id first_event"},
    ),
    "what an endpoint took lately": (
        webhook_figures.LATELY,
        {
            "webhook_attempts": "organization_id endpoint_id started_at",
            "webhook_successes": "organization_id endpoint_id started_to",
        },
    ),
    "endpoints of events": (events.RECORD, {"webhook_endpoints": "organization_id"}),
    "who sent something in an hour": (everywhere.HOURS, {"traffic": "hour"}),
    "messages of all who sent something then": (
        everywhere.SCAN,
        {"messages": "organization_id id", "whatsapp_messages": "organization_id id"},
    ),
    "who knows a number": (
        everywhere.KNOWING_IT,
        {"contacts": "organization_id phone", "opt_outs": "organization_id person"},
    ),
    "a message by Meta's id": (finding.BY_FOREIGN_ID, {"whatsapp_wamids": "number_id wamid"}),
    "whatever has a name, or Meta's id": (finding.BY_NAME, {"whatsapp_wamids": "number_id wamid"}),
    "how long messages of the last hours took": (traffic.DELIVERED, {"traffic": "hour"}),
    "parts of messages that are erased": (erasure.PARTS, {"inbound_messages": "id"}),
    "beginnings of responses that name a person": (
        answers.BEGINNINGS,
        {"webhook_attempts": "organization_id event_id"},
    ),
    "sealed responses that name a person": (
        answers.REMOVE,
        {"webhook_attempt_evidence": "organization_id begun_on event_id"},
    ),
    "messages that no attempt has brought to Meta": (
        sending.UNSENT.format(table="whatsapp_messages"),
        {"whatsapp_messages": "organization_id id", "attempts": "organization_id message_id"},
    ),
    "what suppliers answered that has expired": (
        shorter.ERASE["attempts"],
        {"attempts": "organization_id message_id"},
    ),
    "what suppliers answered about a person's messages": (
        erasure.ANSWERS,
        {"attempts": "organization_id message_id"},
    ),
    "what suppliers answered, to be shown": (
        holdings.ANSWERS,
        {"attempts": "organization_id message_id"},
    ),
    "beginnings of responses that have expired": (
        shorter.ERASE["webhook_attempts"],
        {"webhook_attempts": "organization_id event_id"},
    ),
    "the last message to somebody who answers": (
        opt_out_words.LAST,
        {"whatsapp_messages": "organization_id recipient"},
    ),
    "what is booked of messages": (wallet.SEEN, {"wallet_movements": "organization_id message_id"}),
}

# The plan that a prepared statement keeps: EXPLAIN cannot be given parameters from outside.
EXPLAIN = """
DO $do$
DECLARE line text; lines text[];
BEGIN
    FOR line IN EXECUTE $explain$ EXPLAIN (GENERIC_PLAN) {sql} $explain$ LOOP lines := lines || line; END LOOP;
    RAISE NOTICE USING MESSAGE = array_to_string(lines, chr(10));
END $do$
"""


async def plan_of(pool: Pool, sql: str) -> list[str]:
    async with pool.acquire() as conn:
        notices: list[str] = []

        def note(_: object, message: asyncpg.PostgresLogMessage) -> None:
            notices.append(message.message)

        conn.add_log_listener(note)
        await conn.execute(EXPLAIN.format(sql=sql))
        conn.remove_log_listener(note)
    # A column of another text type is shown as `(mode)::text`, and is searched for like any other.
    return re.sub(r"\((\w+)\)::text", r"\1", notices[0]).split("\n")


@pytest.mark.parametrize(
    ("sql", "table"),
    [
        (sending.BEGIN, "queue"),
        (leases.FINISH_PICKED, "queue"),
        (leases.POSTPONE_PICKED, "queue"),
        (recency.WRITE, "contacts"),
    ],
)
async def test_rows_that_are_locked_are_changed_by_their_place(pool: Pool, sql: str, table: str) -> None:
    lines = await plan_of(pool, sql)
    scans = [line.strip() for line in lines if re.search(r"(?<!Function)(?<!CTE) Scan on ", line)]
    assert [re.sub(r"  .*", "", scan.removeprefix("->  ")) for scan in scans] == [f"Tid Scan on {table}"], lines


def assert_bound(lines: list[str], keys: dict[str, str]) -> None:
    plan = "\n".join(lines)
    for table, columns in keys.items():
        searches = [
            lines[at + 1]
            for at, line in enumerate(lines)
            if re.search(rf"Scan .*using \w+ on {table}(_[0-9]{{4}}_[0-9]{{2}}|_rest)?( |$)", line)
        ]
        assert searches, f"{table} is not searched by an index:\n{plan}"
        for search in searches:
            keyed = search if "Index Cond:" in search else ""  # a filter reads the whole index
            bound = [name for name in columns.split() if re.search(rf"\((?:{name}) [=<>]", keyed)]
            assert bound == columns.split(), plan


@pytest.mark.usefixtures("partitions_ahead")
async def test_rows_are_found_by_their_keys_when_the_plan_was_made_on_empty_tables(pool: Pool) -> None:
    wrong = {}
    for name, (sql, keys) in STATEMENTS.items():
        try:
            assert_bound(await plan_of(pool, sql), keys)
        except AssertionError as error:
            wrong[name] = str(error)
    assert not wrong, "\n\n".join(f"{name}: {told}" for name, told in wrong.items())


# Of a campaign that was paused.
PUT_OFF = """
INSERT INTO queue (kind, line, lane, organization_id, due_at, id)
SELECT 'sms', $1, 1, $1, now() + interval '100 years', id FROM unnest($2::uuid[]) AS one (id)
"""


async def test_due_deliveries_of_an_endpoint_are_found_by_its_line_though_all_work_was_put_off(
    pool: Pool, as_owner: Callable[[str], Awaitable[None]]
) -> None:
    """Otherwise every replay reads everything that is due to see whether its endpoint is behind."""
    await pool.execute(PUT_OFF, uuid7(), [uuid7() for _ in range(3000)])
    await as_owner("ANALYZE queue")
    assert_bound(await plan_of(pool, replays.WAIT), {"queue": "kind line lane organization_id"})


MESSAGES = """
INSERT INTO messages (organization_id, id, mode, status, recipient, sender, sender_id, encoding, segments, guarantee,
                      country, request_id, balance_after, accepted_at)
SELECT $1, id, 'live', 'accepted', '+258841234567', 'BENCH', $1, 'gsm7', 1, 'at_least_once', 'MZ', 'test', 0, now()
  FROM unnest($2::uuid[]) AS one (id)
"""


async def test_plans_are_made_anew_once_a_table_that_was_vacuumed_while_empty_is_filled(
    pool: Pool, as_owner: Callable[[str], Awaitable[None]]
) -> None:
    """Unlike one without statistics, such a table counts as empty until the next ANALYZE: for each batch, a sequential
    scan looks as good as any other plan, and is kept."""
    # On a slow day, the server's own ANALYZE would come before the beat that should see it.
    for (part,) in await pool.fetch("SELECT relid::regclass::text FROM pg_partition_tree('messages') WHERE isleaf"):
        await as_owner(f"ALTER TABLE {part} SET (autovacuum_enabled = false)")
    await as_owner("VACUUM ANALYZE messages")
    nothing = ", ".join(["NULL"] * 17)
    task = asyncio.create_task(pulse.watch(pool))

    async def searches(conn: Any) -> bool:
        kept = await conn.fetch(f"EXPLAIN EXECUTE move_them ({nothing})")
        return any("Index Cond: ((organization_id = v.organization_id) AND (id = v.id))" in line for (line,) in kept)

    try:
        async with pool.acquire() as conn:
            await conn.execute(f"PREPARE move_them AS {sms_status.MOVE}")
            assert not await searches(conn)
            await conn.execute(MESSAGES, uuid7(), [uuid7() for _ in range(2000)])
            await conn.execute("SELECT pg_stat_force_next_flush()")
            assert not await searches(conn)
            async with asyncio.timeout(120):
                while not pool.plans_are_old(conn):  # noqa: ASYNC110  # nobody is told
                    await asyncio.sleep(0.05)
            await pool.renew_plans(conn)
            assert await searches(conn)
    finally:
        task.cancel()


SENT = """
INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at, supplier_message_id)
SELECT $1, message_id, 1, $1, 'accepted', now(), now(), message_id::text FROM unnest($2::uuid[]) AS sent (message_id)
"""


SAID = """
INSERT INTO consent_history (organization_id, id, recipient, said, at, source)
SELECT $1, id, '+25884' || (1000000 + n), 'out', now(), 'organization'
  FROM unnest($2::uuid[]) WITH ORDINALITY AS one (id, n)
"""


KNOWN = """
INSERT INTO contacts (organization_id, id, name, phone, created_at, updated_at)
SELECT $1, id, 'Ana', '+25884' || (1000000 + n), now(), now()
  FROM unnest($2::uuid[]) WITH ORDINALITY AS one (id, n)
"""


@pytest.mark.parametrize(
    "sql", [undoing.HELD, tags.HELD, tags.CHANGE, marked.ADD, marked.REMOVE, marked.DELETE], ids=range(6)
)
async def test_contacts_that_were_just_imported_are_found_by_their_keys_before_there_are_statistics(
    pool: Pool, sql: str
) -> None:
    """An index that has them in the order of numbers looked better: 7 s for a step of 2,000, among 100,000 contacts."""
    await pool.execute(KNOWN, uuid7(), [uuid7() for _ in range(20_000)])
    assert_bound(await plan_of(pool, sql), {"contacts": "organization_id mode id"})


LOOKED_UP = """
INSERT INTO number_lookups (number, asked_on, supplier_id, state, asked_at)
SELECT n, date_trunc('month', now() AT TIME ZONE 'UTC')::date, $1, 'unknown', now()
  FROM unnest($2::uuid[]) WITH ORDINALITY AS one (id, n)
"""


@pytest.mark.parametrize("count", [3, 500])
async def test_rows_are_found_by_their_keys_when_the_plan_was_made_on_a_quiet_day(
    pool: Pool, as_owner: Callable[[str], Awaitable[None]], count: int
) -> None:
    """To a join, scanning three rows looks better than an index search."""
    for fill in (MESSAGES, SENT, SAID, KNOWN, LOOKED_UP):
        await pool.execute(fill, uuid7(), [uuid7() for _ in range(count)])
    for table in ("messages", "attempts", "consent_history", "contacts", "number_lookups"):
        await as_owner(f"VACUUM ANALYZE {table}")
    for sql, keys in (
        (asked.ASK, {"number_lookups": "number asked_on"}),
        (optouts.RESTORE, {"consent_history": "organization_id person"}),
        (outcomes.BESIDES, {"messages": "organization_id id", "attempts": "organization_id message_id"}),
        (recency.READ, {"contacts": "organization_id phone mode"}),
        (records.WRITE, {"contacts": "organization_id phone mode"}),
        (importing.IMAGES, {"contacts": "organization_id phone mode"}),
        (importing.LISTED, {"contacts": "organization_id phone mode"}),
        (undoing.HELD, {"contacts": "organization_id mode id"}),
    ):
        assert_bound(await plan_of(pool, sql), keys)


@pytest.mark.parametrize("count", [5, 500])
async def test_receipts_are_found_by_their_ids_when_the_plan_was_made_on_a_quiet_day(
    pool: Pool, as_owner: Callable[[str], Awaitable[None]], count: int
) -> None:
    """By the statistics of a few attempts of one organization, scanning the messages since some moment looks as good as
    an index search."""
    await pool.execute(SENT, uuid7(), [uuid7() for _ in range(count)])
    await as_owner("VACUUM ANALYZE attempts")
    assert_bound(await plan_of(pool, receipts.FIND), {"attempts": "supplier_message_id target_id"})
