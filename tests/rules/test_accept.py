"""Accepting on a real database: every verdict, the order of checks, and what must hold under concurrency."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from heliograph.accounts import requests
from heliograph.accounts.organizations import DestinationNotAllowed, OrganizationSuspended
from heliograph.accounts.requests import Answer, RateUnit
from heliograph.base.actor import Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool, open_pool
from heliograph.base.errors import Invalid, Refusal, Unavailable
from heliograph.base.ids import time_of, uuid7
from heliograph.consent.optouts import RecipientOptedOut
from heliograph.sms.accepting import accept
from heliograph.sms.accepting.accept import ACCEPT_ONE, Acceptor
from heliograph.sms.accepting.sender_ids import SenderIdNotApproved
from tests.rate_windows import hold_windows
from tests.rules.factories import TO, blocked, check_books, message, organization, send, sender


@pytest.fixture
def acceptor(pool: Pool) -> Acceptor:
    return Acceptor(pool)


@pytest.fixture
async def second(database_url: str) -> AsyncIterator[Acceptor]:
    """Another process's acceptor, with a connection pool of its own."""
    pool = await open_pool(database_url, size=2)
    try:
        yield Acceptor(pool)
    finally:
        pool.terminate()


async def opt_out(pool: Pool, organization_id: UUID, to: str = TO) -> None:
    await pool.execute(
        "INSERT INTO opt_outs (organization_id, recipient, since, source)"
        " VALUES ($1, $2, '2026-01-02T03:04:05Z', 'test')",
        organization_id,
        to,
    )


def id_of(answer: Answer) -> UUID:
    return UUID(msgspec.json.decode(answer.body)["message"]["id"])


async def attempt(acceptor: Any, one: Any) -> Answer | Refusal:
    """An acceptor's result, in either channel."""
    try:
        return await acceptor.accept(one)
    except Refusal as refusal:
        return refusal


#: An organization's keys were made so much earlier; $2: and stand under that day.
PAST = """
UPDATE send_keys SET created_at = created_at - $1::interval,
       made_on = CASE WHEN $2 THEN ((created_at - $1::interval) AT TIME ZONE 'UTC')::date ELSE made_on END
 WHERE organization_id = $3
"""


# -- one alone and one of many -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [72, 1])
async def test_one_alone_is_stored_and_answered_as_one_of_many(pool: Pool, kept: int) -> None:
    """`sms_accept_one` and `sms_accept`: the same sends of two organizations, of which one's always share a batch."""
    acceptor = Acceptor(pool, keys_kept=timedelta(hours=kept))
    alone, among, others = [await organization(pool, quota=quota) for quota in (12, 12, 100)]
    key = uuid7()
    varieties: list[dict[str, Any]] = [
        {},
        {"key_name": "k", "client_reference": "a"},
        {"key_name": "k", "client_reference": "a"},  # a replay
        {"key_name": "k", "text": "another"},
        {"mode": "test"},
        {"by": Principal("person", PERSON)},
        {"by": Principal("person", PERSON), "key_name": "of a person"},
        {"key_name": "past"},  # an earlier use that no longer counts; kept for another hour, it is in the way
        {"to": OPTED_OUT},
        {"to": OPTED_OUT, "key_name": "opted out"},
        {"sender_name": "NOBODY"},
        {"text": "€" * 400, "key_name": "long"},
        {"text": "x" * 9000},
        {"send_at": clock.now() + timedelta(hours=1), "validity_seconds": 60},
        {"validity_seconds": 3600, "guarantee": "at_most_once", "lane": 1, "campaign_id": uuid7()},
        {"send_at": clock.now() + timedelta(days=800)},
        *({"key_name": f"n{n}"} for n in range(12)),  # beyond the quota, and then beyond the limit
    ]
    told: dict[UUID, list[Any]] = {}
    for actor in (alone, among):
        await attempt(acceptor, send(actor, key_name="past"))
        await pool.execute(PAST, timedelta(hours=kept + 1), kept >= 24, actor.organization_id)
        await opt_out(pool, actor.organization_id, OPTED_OUT)
        # Its window was opened while the clock was ahead; it has been set back since.
        ahead = (
            "INSERT INTO rate_windows VALUES ($1, $2, 'sms_send', date_trunc('minute', now()) + interval '1 hour', 99)"
        )
        await pool.execute(ahead, actor.organization_id, key)
        told[actor.organization_id] = []
        for n, variety in enumerate(map(dict, varieties)):
            unit = RateUnit(key, 23)
            who = msgspec.structs.replace(actor, mode=variety.pop("mode", "live"), by=variety.pop("by", None))
            batch = [attempt(acceptor, send(who, rate_unit=unit, **variety))]
            if actor is among:
                batch.append(attempt(acceptor, send(others, key_name=f"{n}")))
            said = (await asyncio.gather(*batch, return_exceptions=True))[0]
            told[actor.organization_id].append((without_ids(said), unit.used, unit.window_start is not None))
            await hold_windows(pool)
    assert told[alone.organization_id] == told[among.organization_id]
    assert len({said for said, _, _ in told[alone.organization_id]}) >= 12 + 6
    by_person = "SELECT count(*) FROM messages WHERE organization_id = $1 AND person_id = $2"
    assert await pool.fetchval(by_person, alone.organization_id, PERSON) == 2
    for rows in STORED:
        one, many = [await pool.fetch(rows, actor.organization_id) for actor in (alone, among)]
        assert one == many, rows
        assert one


async def test_keys_of_a_day_that_has_begun_for_others_are_found_in_the_hours_before(pool: Pool) -> None:
    """Whoever accepted for the organization just before may have begun after midnight. What is found is left to
    `sms_accept`, which returns a verdict; what is stored directly has none."""
    actor, key = await organization(pool), uuid7()
    midnight = clock.midnight(clock.now()) + timedelta(days=1)
    await pool.execute(
        "INSERT INTO send_keys VALUES ($1, $2, $3, sha256('another'), $4, now())",
        actor.organization_id,
        key,
        midnight.date(),
        uuid7(),
    )
    sql = ACCEPT_ONE.replace("date_trunc('milliseconds', now())", "$32::timestamptz")
    for at, found in ((midnight - timedelta(hours=5.9), True), (midnight - timedelta(hours=6.1), False)):
        first = (timedelta(hours=72), actor.organization_id, uuid7(), True, True, key, bytes(32), TO, "MZ", "ACME")
        then = (uuid7(), None, None, "gsm7", 1, "at_least_once", "r", None, None, 0, "text", "sms_send", None, None)
        rest = (None, None, "transactional", None, None, None, None)
        _, _, _, _, verdict, *_ = await pool.fetchval(sql, *first, *then, *rest, at)
        assert (verdict is not None) == found
        await pool.execute(
            "DELETE FROM send_keys WHERE organization_id = $1 AND made_on < $2", actor.organization_id, midnight.date()
        )


OPTED_OUT = "+258841112222"
PERSON = uuid7()
#: Everything stored for an organization except what is its own: all other columns, including future ones. Two
#: organizations stored one after the other have the same, even if an hour or a day ended in between.
STORED = (
    "SELECT to_jsonb(m) - '{organization_id,id,sender_id,accepted_at,expires_at}'::text[],"
    " expires_at - greatest(send_at, accepted_at) FROM messages m WHERE organization_id = $1 ORDER BY id",
    "SELECT q.kind, q.line, q.lane, q.tries, q.claims, q.due_at = greatest(m.send_at, m.accepted_at)"
    " FROM queue q JOIN messages m USING (organization_id, id) WHERE organization_id = $1 ORDER BY id",
    # Without the earlier key: when a day ends, a new one does not replace it.
    "SELECT k.key_hash, k.request_hash, k.made_on = (k.created_at AT TIME ZONE 'UTC')::date, m.body FROM send_keys k"
    " JOIN messages m ON m.organization_id = k.organization_id AND m.id = k.message_id"
    " WHERE k.organization_id = $1 AND k.created_at > m.accepted_at - interval '1 hour' ORDER BY k.key_hash",
    "SELECT to_jsonb(d) - '{organization_id,batch,hour}'::text[], d.hour = date_trunc('hour', m.accepted_at, 'UTC')"
    " FROM traffic_deltas d JOIN messages m ON m.organization_id = d.organization_id AND m.id = d.batch"
    " WHERE d.organization_id = $1 ORDER BY d.batch",
    "SELECT total, used FROM quotas WHERE organization_id = $1",
    "SELECT bucket, taken FROM rate_windows WHERE organization_id = $1",
)


def without_ids(said: Any) -> str:
    """The responses, with everything that is the organization's own replaced."""
    if not isinstance(said, Answer):
        return repr((type(said), getattr(said, "fields", None), getattr(said, "details", None), str(said)))
    body = msgspec.json.decode(said.body)
    del body["message"]["id"]
    return repr((body, said.replayed))


# -- one message -------------------------------------------------------------------------------------------------------


async def test_a_202_is_message_text_queue_row_ledger_row_and_record(acceptor: Acceptor, pool: Pool) -> None:
    actor = await organization(pool, quota=10)
    answer = await acceptor.accept(send(actor, "olá €", key_name="k", client_reference='a"b', request_id="r-1"))
    body = msgspec.json.decode(answer.body)
    id = id_of(answer)
    assert (answer.status, answer.replayed) == (202, False)
    assert body == {
        "success": True,
        "queued": True,
        "status": "accepted",
        "count": 1,
        "remainingQuota": 9,
        "message": {"id": str(id), "clientReference": 'a"b'},
        "provider": {"code": "heliograph", "messageId": None, "httpStatus": 202},
    }
    row = await pool.fetchrow(
        "SELECT * FROM messages WHERE organization_id = $1 AND id = $2", actor.organization_id, id
    )
    assert row is not None
    stored = {name: row[name] for name in ("status", "mode", "recipient", "sender", "client_reference", "request_id")}
    assert stored == {
        "status": "accepted",
        "mode": "live",
        "recipient": TO,
        "sender": "HELIOGRAPH",
        "client_reference": 'a"b',
        "request_id": "r-1",
    }
    assert abs(time_of(id) - row["accepted_at"]) < timedelta(seconds=30)
    assert await pool.fetchval("SELECT body FROM messages WHERE id = $1", id) == "olá €"
    work = await pool.fetchrow("SELECT * FROM queue WHERE id = $1", id)
    assert work is not None
    assert (work["kind"], work["line"].int, work["lane"], work["tries"], work["claims"]) == ("sms", 0, 0, 0, 0)
    ledger = await pool.fetchrow("SELECT * FROM usage_entries WHERE id = $1", id)
    assert ledger is not None
    assert (ledger["type"], ledger["quantity"], ledger["balance_after"]) == ("usage", -1, 9)
    assert (ledger["message_id"], ledger["segments"]) == (id, row["segments"])
    kept = await pool.fetch("SELECT message_id FROM send_keys WHERE organization_id = $1", actor.organization_id)
    assert [row["message_id"] for row in kept] == [id]
    assert acceptor.stored.is_set()


async def test_a_second_post_of_the_same_key_is_the_first_answer_byte_for_byte(acceptor: Acceptor, pool: Pool) -> None:
    actor = await organization(pool, quota=10)
    first = await acceptor.accept(send(actor, key_name="k"))
    await acceptor.accept(send(actor, "another"))
    again = await acceptor.accept(send(actor, key_name="k"))
    assert again == Answer(202, first.body, True)
    assert await pool.fetchval("SELECT count(*) FROM messages") == 2
    await check_books(pool, [actor.organization_id])


async def test_another_payload_under_a_used_key_conflicts(acceptor: Acceptor, pool: Pool) -> None:
    actor = await organization(pool)
    await acceptor.accept(send(actor, "one", key_name="k"))
    with pytest.raises(requests.IdempotencyConflict):
        await acceptor.accept(send(actor, "two", key_name="k"))
    assert await pool.fetchval("SELECT count(*) FROM messages") == 1


async def test_the_same_key_of_two_organizations_is_two_messages(acceptor: Acceptor, pool: Pool) -> None:
    one, two = await organization(pool), await organization(pool)
    answers = await asyncio.gather(*(acceptor.accept(send(actor, key_name="k")) for actor in (one, two)))
    assert not any(answer.replayed for answer in answers)
    assert await pool.fetchval("SELECT count(*) FROM messages") == 2


async def test_a_replay_is_answered_whatever_has_changed_since(acceptor: Acceptor, pool: Pool) -> None:
    actor = await organization(pool, quota=1)
    first = await acceptor.accept(send(actor, key_name="k"))
    await pool.execute("UPDATE sender_ids SET status = 'suspended', is_default = false")
    await opt_out(pool, actor.organization_id)
    suspended = msgspec.structs.replace(actor, state="suspended", allowed_countries=frozenset({"PT"}))
    for asking in (actor, suspended):
        assert (await Acceptor(pool).accept(send(asking, key_name="k"))).body == first.body


async def test_a_refused_send_frees_its_key(acceptor: Acceptor, pool: Pool) -> None:
    actor = await organization(pool, quota=0)
    with pytest.raises(accept.QuotaExceeded) as refused:
        await acceptor.accept(send(actor, key_name="k"))
    assert refused.value.details == {"remainingQuota": 0, "requested": 1}
    await pool.execute("UPDATE quotas SET total = 1")
    assert not (await acceptor.accept(send(actor, "other words", key_name="k"))).replayed


# -- the order of checks -----------------------------------------------------------------------------------------------


async def test_the_first_thing_that_is_wrong_is_the_answer(pool: Pool) -> None:
    """Segments (400) → known key → organization, destination (403) → opt-out → sender (409) → quota (409)."""
    actor = await organization(pool, quota=0)
    pending = await sender(pool, actor, "PENDING", status="pending")
    await opt_out(pool, actor.organization_id)
    acceptor = Acceptor(pool)
    everything = msgspec.structs.replace(actor, state="suspended", allowed_countries=frozenset({"PT"}))
    text = "x" * 1600

    async def said(one: accept.Send) -> type[BaseException]:
        return type(await attempt(acceptor, one))

    assert await said(send(everything, text, sender_id=pending)) is Invalid
    assert await said(send(everything, sender_id=pending)) is OrganizationSuspended
    not_there = msgspec.structs.replace(everything, state="active")
    assert await said(send(not_there, sender_id=pending)) is DestinationNotAllowed
    assert await said(send(actor, sender_id=uuid7())) is Invalid
    assert await said(send(actor, sender_id=pending)) is RecipientOptedOut
    await pool.execute("DELETE FROM opt_outs")
    assert await said(send(actor, sender_id=pending)) is SenderIdNotApproved
    assert await said(send(actor)) is accept.QuotaExceeded
    assert await pool.fetchval("SELECT count(*) FROM messages") == 0


@pytest.mark.parametrize("state", ["suspended", "closed"])
async def test_a_stopped_organization_sends_nothing(acceptor: Acceptor, pool: Pool, state: str) -> None:
    with pytest.raises(OrganizationSuspended):
        await acceptor.accept(send(await organization(pool, state=state)))


@pytest.mark.parametrize("state", ["active", "trial", "past_due"])
async def test_other_states_send(acceptor: Acceptor, pool: Pool, state: str) -> None:
    assert (await acceptor.accept(send(await organization(pool, state=state)))).status == 202


async def test_only_allowed_countries_are_sent_to(acceptor: Acceptor, pool: Pool) -> None:
    actor = await organization(pool, allowed_countries=frozenset({"MZ"}))
    assert (await acceptor.accept(send(actor))).status == 202
    with pytest.raises(DestinationNotAllowed) as refused:
        await acceptor.accept(send(actor, to="+351912345678"))
    assert refused.value.details == {"country": "PT", "reason": "country"}


async def test_an_opted_out_recipient_is_refused_with_the_time(acceptor: Acceptor, pool: Pool) -> None:
    actor, other = await organization(pool), await organization(pool)
    await opt_out(pool, actor.organization_id)
    with pytest.raises(RecipientOptedOut) as refused:
        await acceptor.accept(send(actor))
    assert refused.value.details == {"since": "2026-01-02T03:04:05.000Z"}
    assert (await acceptor.accept(send(other))).status == 202


@pytest.mark.parametrize("to", ["MPESA", "1234", "258841111111", "+PROMO", ""])
async def test_what_is_no_number_is_refused_here_too(acceptor: Acceptor, pool: Pool, to: str) -> None:
    """Whatever the API lets through: a worker that finds a sender's name in the queue could send nothing for
    anybody."""
    actor = await organization(pool)
    outcome, other = await acceptor.accept_many([send(actor, to=to), send(actor)])
    assert isinstance(outcome, Invalid)
    assert outcome.details["fields"][0]["issue"] == "pattern"
    assert not isinstance(other, Refusal), "nobody else's send is refused with it"
    assert await pool.fetchval("SELECT count(*) FROM messages") == 1


@pytest.mark.parametrize(
    ("text", "fits"), [("x" * 1530, True), ("x" * 1531, False), ("ж" * 670, True), ("ж" * 671, False)]
)
async def test_ten_segments_are_the_most(acceptor: Acceptor, pool: Pool, text: str, fits: bool) -> None:
    outcome = await attempt(acceptor, send(await organization(pool), text))
    if fits:
        assert await pool.fetchval("SELECT segments FROM messages") == 10
    else:
        assert isinstance(outcome, Invalid)
        assert outcome.details["fields"][0]["issue"] == "too_many_segments"
        assert str(len(text) - 1) in outcome.details["fields"][0]["message"]


async def test_smart_encoding_is_the_organizations_choice(acceptor: Acceptor, pool: Pool) -> None:
    plain, smart = await organization(pool), await organization(pool, smart_encoding=True)
    for actor in (plain, smart):
        await acceptor.accept(send(actor, "a “quote”"))
    rows = await pool.fetch("SELECT organization_id, encoding FROM messages")
    assert {row[0]: row[1] for row in rows} == {plain.organization_id: "ucs2", smart.organization_id: "gsm7"}


# -- senders -----------------------------------------------------------------------------------------------------------


async def test_both_forms_name_the_same_sender(acceptor: Acceptor, pool: Pool) -> None:
    actor = await organization(pool)
    id = await sender(pool, actor, "Shop")
    for values in ({"sender_id": id}, {"sender_name": "sHOP"}, {"sender_id": id, "sender_name": "shop"}):
        answer = await acceptor.accept(send(actor, **values))
        assert await pool.fetchval("SELECT sender FROM messages WHERE id = $1", id_of(answer)) == "Shop"


async def test_senders_that_may_not_be_used(acceptor: Acceptor, pool: Pool) -> None:
    actor, other = await organization(pool), await organization(pool)
    theirs = await sender(pool, other, "Theirs")
    mine = await sender(pool, actor, "Mine")
    rejected = await sender(pool, actor, "Bad", status="rejected", reason="a brand")
    unknown = await attempt(acceptor, send(actor, sender_id=theirs))
    assert isinstance(unknown, Invalid)
    disagree = await attempt(acceptor, send(actor, sender_id=mine, sender_name="Bad"))
    assert isinstance(disagree, Invalid)
    for values, details in (
        ({"sender_name": "Theirs"}, {"senderId": None, "status": None, "reason": "unknown"}),
        ({"sender_id": rejected}, {"senderId": str(rejected), "status": "rejected", "reason": "a brand"}),
    ):
        refused = await attempt(acceptor, send(actor, **values))
        assert isinstance(refused, SenderIdNotApproved)
        assert refused.details == details
    await pool.execute("UPDATE sender_ids SET is_default = false")
    no_default = await attempt(Acceptor(pool), send(actor))
    assert isinstance(no_default, SenderIdNotApproved)
    assert no_default.details["reason"] == "no_default"


async def test_an_approval_counts_from_its_commit_on(acceptor: Acceptor, pool: Pool) -> None:
    actor = await organization(pool)
    id = await sender(pool, actor, "New", status="pending")
    assert isinstance(await attempt(acceptor, send(actor, sender_id=id)), SenderIdNotApproved)
    await pool.execute("UPDATE sender_ids SET status = 'approved' WHERE id = $1", id)
    assert (await acceptor.accept(send(actor, sender_id=id))).status == 202


# -- modes and times ---------------------------------------------------------------------------------------------------


async def test_test_mode_costs_nothing(acceptor: Acceptor, pool: Pool) -> None:
    actor = await organization(pool, quota=1)
    tester = msgspec.structs.replace(actor, mode="test")
    answers = await asyncio.gather(*(acceptor.accept(send(tester)) for _ in range(5)), acceptor.accept(send(actor)))
    assert [msgspec.json.decode(answer.body)["remainingQuota"] for answer in answers[:5]] == [1] * 5
    assert await pool.fetchval("SELECT count(*) FROM messages WHERE mode = 'test'") == 5
    assert (await acceptor.accept(send(tester))).status == 202
    await check_books(pool, [actor.organization_id])


async def test_what_is_sent_later_is_due_later_and_valid_from_then(acceptor: Acceptor, pool: Pool) -> None:
    actor = await organization(pool)
    at = clock.now() + timedelta(days=3)
    plain = id_of(await acceptor.accept(send(actor, validity_seconds=600)))
    later = id_of(await acceptor.accept(send(actor, send_at=at)))
    valid = id_of(await acceptor.accept(send(actor, send_at=at, validity_seconds=60)))
    due = {row["id"]: row["due_at"] for row in await pool.fetch("SELECT id, due_at FROM queue")}
    expires = {row["id"]: row["expires_at"] for row in await pool.fetch("SELECT id, expires_at FROM messages")}
    assert due[later] == due[valid] == at
    assert expires[valid] == at + timedelta(seconds=60)
    assert expires[plain] - due[plain] == timedelta(seconds=600)
    # The retry schedule's day must not end before the message was even due.
    assert expires[later] == at + timedelta(days=1)


# -- many at once ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("round", range(5))
async def test_two_hundred_identical_posts_are_one_message(
    acceptor: Acceptor, second: Acceptor, pool: Pool, round: int
) -> None:
    actor = await organization(pool)
    posts = [(acceptor, second)[n % 2].accept(send(actor, key_name="k")) for n in range(200)]
    answers = await asyncio.gather(*posts)
    assert Counter(answer.replayed for answer in answers) == {False: 1, True: 199}
    assert len({answer.body for answer in answers}) == 1
    changed = await asyncio.gather(*(attempt(acceptor, send(actor, "changed", key_name="k")) for _ in range(20)))
    assert {type(one) for one in changed} == {requests.IdempotencyConflict}
    assert await pool.fetchval("SELECT count(*) FROM messages") == 1
    await check_books(pool, [actor.organization_id])


async def test_twins_within_a_batch(acceptor: Acceptor, pool: Pool) -> None:
    actor = await organization(pool)
    outcomes = await asyncio.gather(
        *(attempt(acceptor, send(actor, text, key_name="k")) for text in ("one", "two", "one", "one"))
    )
    assert isinstance(outcomes[0], Answer)
    assert isinstance(outcomes[1], requests.IdempotencyConflict)
    assert outcomes[2] == outcomes[3] == Answer(202, outcomes[0].body, True)
    assert await pool.fetchval("SELECT count(*) FROM messages") == 1


async def test_a_twin_of_a_refused_one_has_the_key_to_itself(acceptor: Acceptor, pool: Pool) -> None:
    actor = await organization(pool)
    await opt_out(pool, actor.organization_id, "+258841111111")
    gone, fine = {"to": "+258841111111"}, {"to": "+258842222222"}
    outcomes = await asyncio.gather(
        *(attempt(acceptor, send(actor, key_name="k", **values)) for values in (gone, gone, fine, fine))
    )
    assert [type(one) for one in outcomes] == [RecipientOptedOut, RecipientOptedOut, Answer, Answer]
    assert [one.replayed for one in outcomes if isinstance(one, Answer)] == [False, True]


async def test_many_refused_payloads_under_one_key_hold_nobody_up(acceptor: Acceptor, pool: Pool) -> None:
    actor, other = await organization(pool, quota=0), await organization(pool)
    posts = [attempt(acceptor, send(actor, f"text {n}", key_name="k")) for n in range(300)]
    *refused, answer = await asyncio.gather(*posts, attempt(acceptor, send(other)))
    assert isinstance(answer, Answer)
    assert {type(one) for one in refused} == {accept.QuotaExceeded, requests.IdempotencyInProgress}


async def test_quota_is_exact_to_the_last_unit_across_processes(
    acceptor: Acceptor, second: Acceptor, pool: Pool
) -> None:
    actor = await organization(pool, quota=50)
    outcomes = await asyncio.gather(
        *(attempt((acceptor, second)[n % 2], send(actor, key_name=f"k{n}")) for n in range(120))
    )
    assert Counter(type(one) for one in outcomes) == {Answer: 50, accept.QuotaExceeded: 70}
    left = [msgspec.json.decode(one.body)["remainingQuota"] for one in outcomes if isinstance(one, Answer)]
    assert sorted(left) == list(range(50))
    assert await pool.fetchval("SELECT count(*) FROM send_keys") == 50
    await check_books(pool, [actor.organization_id])


async def test_the_books_are_right_at_every_instant(acceptor: Acceptor, second: Acceptor, pool: Pool) -> None:
    actors = [await organization(pool, quota=quota) for quota in (0, 7, 60)]
    chance = random.Random(7)

    async def post(number: int) -> None:
        actor = chance.choice(actors)
        await asyncio.sleep(chance.random() / 20)
        await attempt(chance.choice((acceptor, second)), send(actor, key_name=f"k{number % 40}"))

    posts = asyncio.gather(*(post(number) for number in range(200)))
    while not posts.done():
        async with pool.acquire() as conn, conn.transaction(isolation="repeatable_read"):
            wrong = await conn.fetch(
                "SELECT organization_id FROM quotas q WHERE total - used <> (SELECT sum(quantity) FROM usage_entries l"
                " WHERE l.organization_id = q.organization_id) OR used <> (SELECT count(*) FROM messages m WHERE"
                " m.organization_id = q.organization_id) OR used <> (SELECT count(*) FROM queue w WHERE"
                " w.organization_id = q.organization_id) OR used <> (SELECT count(*) FROM send_keys i WHERE"
                " i.organization_id = q.organization_id)"
            )
        assert wrong == []
        await asyncio.sleep(0)
    await posts
    await check_books(pool, [actor.organization_id for actor in actors])


@pytest.mark.parametrize(
    "bad", [{"text": "nul \0"}, {"to": "+25884\0"}, {"client_reference": "\ud800"}, {"lane": 99_999}]
)
async def test_a_bad_item_never_sinks_its_batch(acceptor: Acceptor, pool: Pool, bad: dict[str, object]) -> None:
    """Values that should never get here; PostgreSQL, or the way to it, refuses them."""
    actor = await organization(pool)
    sends = [send(actor, f"n{n}") for n in range(9)]
    # The words are those of a lost connection: a customer's text must not be mistaken for the server's state.
    sends.insert(4, msgspec.structs.replace(send(actor, "the connection is closed"), **bad))
    outcomes = await asyncio.gather(*(acceptor.accept(one) for one in sends), return_exceptions=True)
    assert [isinstance(one, Answer) for one in outcomes] == [n != 4 for n in range(10)]
    assert isinstance(outcomes[4], Exception)
    assert not isinstance(outcomes[4], Unavailable)
    assert await pool.fetchval("SELECT count(*) FROM messages") == 9
    await check_books(pool, [actor.organization_id])


async def test_a_cancelled_caller_leaves_all_or_nothing(acceptor: Acceptor, pool: Pool) -> None:
    actor = await organization(pool)
    chance = random.Random(3)
    tasks = [asyncio.create_task(acceptor.accept(send(actor, key_name=f"k{n}"))) for n in range(60)]
    for task in tasks:
        if chance.random() < 0.5:
            await asyncio.sleep(chance.random() / 500)
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await acceptor.drain()
    ids = {row["id"] for row in await pool.fetch("SELECT id FROM messages")}
    for table, column in (("queue", "id"), ("usage_entries", "message_id")):
        rows = await pool.fetch(f"SELECT {column} AS id FROM {table} WHERE {column} IS NOT NULL")
        assert {row["id"] for row in rows} == ids
    assert {id_of(task.result()) for task in tasks if not task.cancelled()} <= ids
    assert await pool.fetchval("SELECT count(*) FROM send_keys") == len(ids)
    await check_books(pool, [actor.organization_id])
    # Clients that were cut off retry, and each has exactly one message.
    await asyncio.gather(*(acceptor.accept(send(actor, key_name=f"k{n}")) for n in range(60)))
    assert await pool.fetchval("SELECT count(*) FROM messages") == 60


async def test_accept_many_gives_each_its_own(acceptor: Acceptor, pool: Pool) -> None:
    actor = await organization(pool, quota=2)
    results = await acceptor.accept_many([send(actor), send(actor, sender_id=uuid7()), send(actor), send(actor)])
    assert [type(one) for one in results] == [Answer, Invalid, Answer, accept.QuotaExceeded]


async def test_an_organization_that_is_held_up_holds_up_no_other(acceptor: Acceptor, pool: Pool) -> None:
    held, other = await organization(pool), await organization(pool)
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute("SELECT FROM quotas WHERE organization_id = $1 FOR UPDATE", held.organization_id)
        with_key, without, fine = await asyncio.gather(
            *(attempt(acceptor, one) for one in (send(held, key_name="k"), send(held), send(other)))
        )
    for refused in (with_key, without):
        assert isinstance(refused, Unavailable)
        assert refused.headers == {"retry-after": "1"}
    assert isinstance(fine, Answer)
    assert (await acceptor.accept(send(held, key_name="k"))).status == 202


async def test_a_twin_waits_for_the_first(acceptor: Acceptor, pool: Pool) -> None:
    """Another process locks the organization for a moment: that is a wait, not a refusal."""
    actor = await organization(pool)
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute("SELECT FROM quotas WHERE organization_id = $1 FOR UPDATE", actor.organization_id)
        post = asyncio.create_task(acceptor.accept(send(actor, key_name="k")))
        await blocked(pool)
    assert (await post).status == 202


# -- without a database ------------------------------------------------------------------------------------------------


async def test_nothing_is_accepted_that_cannot_be_stored(pool: Pool, database_url: str) -> None:
    actor = await organization(pool)
    gone = await open_pool(database_url, size=2)
    acceptor = Acceptor(gone)
    assert (await acceptor.accept(send(actor))).status == 202
    await gone.close()
    for one in (send(actor), send(actor, key_name="k")):
        with pytest.raises(Unavailable) as refused:
            await acceptor.accept(one)
        assert refused.value.headers == {"retry-after": "1"}
    assert await pool.fetchval("SELECT count(*) FROM messages") == 1


async def test_a_connection_that_is_cut_in_the_middle_is_a_503_and_the_next_one_is_accepted(
    acceptor: Acceptor, pool: Pool
) -> None:
    actor = await organization(pool)
    assert (await acceptor.accept(send(actor))).status == 202
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute("SELECT FROM quotas FOR UPDATE")
        post = asyncio.create_task(attempt(acceptor, send(actor, key_name="k")))
        await blocked(pool, kill=True)
    assert isinstance(await post, Unavailable)
    assert not (await acceptor.accept(send(actor, key_name="k"))).replayed


async def test_without_a_balance_there_is_no_quota(acceptor: Acceptor, pool: Pool) -> None:
    actor = await organization(pool)
    await pool.execute("DELETE FROM quotas")
    with pytest.raises(accept.QuotaExceeded):
        await acceptor.accept(send(actor))


async def test_a_message_made_by_hand_is_what_accept_makes(acceptor: Acceptor, pool: Pool) -> None:
    """Other tests create messages without accepting them; the two must not drift apart."""
    actor = await organization(pool)
    made = await message(pool, actor)
    accepted = id_of(await acceptor.accept(send(actor, sender_name="HELIOGRAPH")))
    different = {"id", "accepted_at", "body", "balance_after"}
    rows = await pool.fetch("SELECT * FROM messages WHERE id = ANY ($1) ORDER BY id", [made, accepted])
    assert len({tuple(value for name, value in row.items() if name not in different) for row in rows}) == 1
    rows = await pool.fetch("SELECT kind, line, lane, tries, claims, lease_until FROM queue")
    assert len({tuple(row) for row in rows}) == 1
