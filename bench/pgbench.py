"""What the same PostgreSQL can do without us: pgbench, durable, with the server's own settings.

`insert`: one row of a message's size, with a UUID as its key. This is the limit with one commit per message.
`naive`: the writes of an accept, by the same server-side function, one request per transaction.
"""

from __future__ import annotations

import re
from pathlib import Path

from bench.load import TEXT
from bench.stage import BenchError, Stage

CREATE = """
CREATE TABLE IF NOT EXISTS bench_rows (
    id uuid PRIMARY KEY, recipient text NOT NULL, body text NOT NULL, accepted_at timestamptz NOT NULL)
"""
# uuidv7() keeps the index as compact as our own ids do; random ids would make this slower, and us look faster.
INSERT = f"""
\\set recipient random(1000000, 9999999)
INSERT INTO bench_rows (id, recipient, body, accepted_at)
VALUES (uuidv7(), '+25884' || :recipient::text, '{TEXT}', now());
"""
# The arguments of sms_accept_one in order: the message, and one unit of a rate window. To pgbench, a colon before a
# letter or digit is a variable.
NAIVE = """
\\set recipient random(1000000, 9999999)
SELECT sms_accept_one(now(), interval '72 hours', '{organization}', uuidv7(), true, true,
  gen_random_uuid(), sha256(:recipient::text::bytea), '+25884' || :recipient::text, 'MZ', 'HELIOGRAPH', '{sender}',
  NULL, NULL, 'gsm7', 1::smallint, 'at_least_once', gen_random_uuid()::text, NULL, NULL, 0::smallint, '{text}',
  'sms_send', '{sender}', 2000000000, '{sender}', NULL, 'transactional', NULL, NULL, NULL, true);
"""


async def insert(stage: Stage, *, clients: int, seconds: float) -> float:
    """Rows inserted per second, each with its own commit."""
    async with stage.connection() as conn:
        await conn.execute(CREATE)
        await conn.execute("TRUNCATE bench_rows")
    await stage.checkpoint()
    rate = await _run(stage, INSERT, clients, seconds)
    async with stage.connection() as conn:
        await conn.execute("DROP TABLE bench_rows")
    return rate


async def naive(stage: Stage, *, clients: int, seconds: float) -> float:
    """Messages accepted per second, one per transaction, for one organization, as in the accept part."""
    await stage.empty()
    async with stage.connection() as conn:
        sender = await conn.fetchval(
            "SELECT id FROM sender_ids WHERE is_default AND organization_id = $1", stage.organization
        )
    script = NAIVE.format(organization=stage.organization, sender=sender, text=TEXT)
    rate = await _run(stage, script, clients, seconds)
    async with stage.connection() as conn:
        stored = await conn.fetchval("SELECT count(*) FROM messages")
    if stored < rate * seconds * 0.5:
        raise BenchError(f"the one-by-one transaction stored {stored} messages at a claimed {rate:.0f} a second")
    return rate


async def _run(stage: Stage, script: str, clients: int, seconds: float) -> float:
    path = Path(stage.place) / "script.sql"
    path.write_text(script)
    command = [stage.programs / "pgbench", "--no-vacuum", "--protocol=prepared", f"--client={clients}"]
    command += [
        f"--jobs={min(clients, 2)}",
        f"--time={max(round(seconds), 1)}",
        f"--file={path}",
        stage.server.owner_url,
    ]
    # As our pool sets them.
    options = {"PGOPTIONS": "-c jit=off -c plan_cache_mode=force_generic_plan"}
    said = await stage.run(*(str(one) for one in command), environment=options)
    found = re.search(r"^tps = ([\d.]+)", said, re.MULTILINE)
    if found is None:
        raise BenchError(f"pgbench said:\n{said}")
    return float(found[1])
