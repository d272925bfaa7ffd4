"""Meta apps: each with the secret that signs its callbacks. Several organizations may share one.

The rule nobody may break: secrets are sealed in their row, and an organization that adds an account of a known app does
not change them.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.crypto import Key, Unsealable, constant_time_equal, derive_key, seal, unseal
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, Pool, is_down
from heliograph.base.errors import Invalid, NotFound, Problems
from heliograph.base.ids import uuid7
from heliograph.base.loading_cache import LoadingCache
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import said


class App(msgspec.Struct, frozen=True):
    """A Meta app, as needed for its callbacks: with decrypted secrets, which its repr does not show."""

    id: UUID
    #: Meta's id.
    app_id: str
    #: Secrets that may sign callbacks: the current one, and during a change the previous one.
    secrets: tuple[bytes, ...]
    verify_token: str
    #: When the handshake last succeeded, and when a callback with a valid signature last arrived.
    verified_at: datetime | None
    last_callback_at: datetime | None

    def __repr__(self) -> str:
        return f"App({self.app_id})"

    @property
    def secret(self) -> bytes:
        """The current secret."""
        return self.secrets[0]


SEALED = said(
    "Encrypted with another secret key. Enter the app's secret again, then the token, on the account's page or by"
    " `heliograph whatsapp account update`."
)
#: How long callbacks signed with the previous secret are still accepted, seconds.
OLD_SECRET = 7 * 86_400.0


def seal_key(settings: Settings) -> Key:
    """The key that seals secrets of apps and accounts, and stored callbacks."""
    return derive_key(settings.secret_keys, "whatsapp")


def callback_url(settings: Settings, app: UUID) -> str:
    """The URL for Meta to send an app's callbacks to."""
    base = settings.public_url.rstrip("/") or "https://YOUR-ADDRESS"
    return f"{base}/in/whatsapp/{app}"


FIND_APP = "SELECT id, app_id, secret, verify_token FROM whatsapp_apps WHERE app_id = $1 FOR UPDATE"
ADD_APP = """
INSERT INTO whatsapp_apps (id, app_id, secret, verify_token, created_at, changed_at) VALUES ($1, $2, $3, $4, $5, $5)
ON CONFLICT (app_id) DO NOTHING
"""


async def ensure_app(
    conn: Connection,
    key: Key,
    app_id: str,
    secret: str | None,
    verify_token: str | None,
    at: datetime,
    by: Principal = SYSTEM,
) -> UUID:
    """The app's row id, created if necessary. A known app is left unchanged, unless its secret was sealed with another
    secret key: then it gets these. Raises Invalid."""
    row = await conn.fetchrow(FIND_APP, app_id)
    if row is not None and secret and _opened(key, row["id"], "secret", row["secret"]) is None:
        await change_app(conn, key, app_id=app_id, app_secret=secret, verify_token=verify_token, by=by)
        row = await conn.fetchrow(FIND_APP, app_id)
    if row is None:
        given = (("app_secret", secret), ("verify_token", verify_token))
        lacking = [(name, "required", f"`{name}` is required for a new app") for name, text in given if not text]
        if lacking or not secret or not verify_token:
            raise Invalid(*lacking)
        id = uuid7()
        place = f"whatsapp_apps/{id}"
        sealed = (
            seal(key, secret.encode(), f"{place}/secret"),
            seal(key, verify_token.encode(), f"{place}/verify_token"),
        )
        await conn.execute(ADD_APP, id, app_id, *sealed, at)
        # Another process may have been faster.
        row = await conn.fetchrow(FIND_APP, app_id)
        assert row is not None
    wrong = Problems()
    for name, value in (("secret", secret), ("verify_token", verify_token)):
        known = unseal(key, row[name], f"whatsapp_apps/{row['id']}/{name}")
        if value is not None and not constant_time_equal(known, value):
            field = "app_secret" if name == "secret" else name
            wrong.add(field, "disagrees", f"`{field}` differs from the one stored for this app; update it separately")
    wrong.report()
    found: UUID = row["id"]
    return found


CHANGE_APP = """
UPDATE whatsapp_apps
   SET old_secret = CASE WHEN $2::bytea IS NULL THEN old_secret ELSE secret END,
       old_secret_till = CASE WHEN $2 IS NULL THEN old_secret_till ELSE now() + make_interval(secs => $5) END,
       secret = coalesce($2, secret), verify_token = coalesce($3, verify_token), changed_at = $4
 WHERE app_id = $1
"""


# Like a new token of an account: what its calls, which prove the secret, were refused is tried again at once, and the
# check of a reading that began with the old one does not count.
RETRY_ACCOUNTS = """
UPDATE whatsapp_accounts
   SET held_until = least(held_until, now()), trying_id = NULL, trying_at = NULL,
       credential_checked_at = now(), mirror_at = now(), numbers_at = now(), templates_at = now()
 WHERE app = $1 AND state <> 'removed'
"""
#: Maximum characters of a secret or verify token.
LONGEST = 200


async def change_app(
    conn: Connection,
    key: Key,
    *,
    app_id: str,
    app_secret: str | None = None,
    verify_token: str | None = None,
    keep_old: float = OLD_SECRET,
    by: Principal = SYSTEM,
) -> None:
    """Change an app's secret or verify token. Callbacks signed with the old secret are accepted for another `keep_old`
    seconds, since Meta repeats failed ones for days. A new secret ends its accounts' holds: one message of each probes.
    The same secret again changes nothing. If what is stored was sealed with another secret key, the app gets a random
    verify token along with its secret. Raises Invalid, NotFound."""
    if app_secret is None and verify_token is None:
        raise Invalid(("app_secret", "required", "Give the app's new secret, or its new verify token."))
    wrong = Problems()
    for name, value in (("app_secret", app_secret), ("verify_token", verify_token)):
        if value is not None and not (0 < len(value) <= LONGEST and value.isprintable()):
            wrong.add(name, "length", "Enter 1 to 200 printable characters.")
    wrong.report()
    async with conn.transaction():
        row = await conn.fetchrow(FIND_APP, app_id)
        if row is None:
            raise NotFound("There is no such app.", appId=app_id)
        # Otherwise it would take the place of the old one.
        known, readable = (_opened(key, row["id"], name, row[name]) for name in ("secret", "verify_token"))
        if app_secret is not None and known is not None and constant_time_equal(known, app_secret):
            app_secret = None
            if verify_token is None:
                return
        if app_secret is not None and verify_token is None and readable is None:
            verify_token = secrets.token_urlsafe(24)
        sealed = [
            None if text is None else seal(key, text.encode(), f"whatsapp_apps/{row['id']}/{name}")
            for name, text in (("secret", app_secret), ("verify_token", verify_token))
        ]
        await conn.execute(CHANGE_APP, app_id, *sealed, clock.now(), keep_old)
        if app_secret is not None:
            await conn.execute(RETRY_ACCOUNTS, row["id"])
        given = {"app_secret": app_secret, "verify_token": verify_token}
        after = {name: value for name, value in given.items() if value is not None}
        await audit.record(conn, by, "whatsapp_app.changed", object_id=row["id"], name=app_id, after=after)


def _opened(key: Key, id: UUID, name: str, sealed: bytes) -> bytes | None:
    """A secret of the app; None if it was sealed with another key."""
    try:
        return unseal(key, sealed, f"whatsapp_apps/{id}/{name}")
    except Unsealable:
        return None


_APP = """
SELECT id, app_id, secret, CASE WHEN old_secret_till > now() THEN old_secret END AS old_secret, verify_token,
       verified_at, last_callback_at
  FROM whatsapp_apps
"""
APPS = f"{_APP} WHERE id = ANY ($1)"
APP_BY_ID = f"{_APP} WHERE app_id = $1"
EXISTING = "SELECT id FROM whatsapp_apps"
#: Seconds for which the list of all apps is reused while somebody is guessing.
EXISTING_AGE = 5.0


class AppBook:
    """A cache of apps, at most half a second old."""

    def __init__(self, pool: Pool, key: Key) -> None:
        """`key`: from `seal_key`."""
        self._pool = pool
        self._key = key
        self._fresh: LoadingCache[UUID, App] = LoadingCache(self._load, indivisible=is_down)
        self._existing: LoadingCache[str, frozenset[UUID]] = LoadingCache(self._list, max_age=EXISTING_AGE)

    async def get(self, app_id: UUID, *, is_guess: bool = False) -> App | None:
        """The app with the id in its callback URL. `is_guess`: the client has requested too many unknown ids; another
        one then costs no query."""
        fresh, app = self._fresh.peek(app_id)
        if fresh or (is_guess and app_id not in (await self._existing.get(EXISTING) or ())):
            return app
        return await self._fresh.get(app_id)

    async def _list(self, names: Sequence[str]) -> dict[str, frozenset[UUID]]:
        return dict.fromkeys(names, frozenset([row["id"] for row in await self._pool.fetch(EXISTING)]))

    async def _load(self, ids: Sequence[UUID]) -> dict[UUID, App]:
        return {row["id"]: open_app(self._key, row) for row in await self._pool.fetch(APPS, ids)}


SECRETS = "SELECT id, secret FROM whatsapp_apps"


async def all_open(conn: Connection, key: Key) -> bool:
    """Whether `key` opens the current secrets of all apps."""
    try:
        for id, sealed in await conn.fetch(SECRETS):
            open_secret(key, id, sealed)
    except Unsealable:
        return False
    return True


def open_secret(key: Key, id: UUID, sealed: bytes) -> bytes:
    """The secret of the app with this row id."""
    return unseal(key, sealed, f"whatsapp_apps/{id}/secret")


def open_app(key: Key, row: asyncpg.Record) -> App:
    """A row of APPS with its secrets decrypted."""
    # Of a secret key that is no longer configured: the current secret decides.
    old = None if row["old_secret"] is None else _opened(key, row["id"], "secret", row["old_secret"])
    return App(
        row["id"],
        row["app_id"],
        (open_secret(key, row["id"], row["secret"]), *(() if old is None else (old,))),
        unseal(key, row["verify_token"], f"whatsapp_apps/{row['id']}/verify_token").decode(),
        row["verified_at"],
        row["last_callback_at"],
    )


async def get_app(conn: Connection, key: Key, id: UUID) -> App:
    """The app according to the database's current state. Raises NotFound."""
    row = await conn.fetchrow(APPS, [id])
    if row is None:
        raise NotFound("There is no such app.", id=str(id))
    return open_app(key, row)


async def shown(conn: Connection, key: Key, id: UUID) -> tuple[str, str | None]:
    """Meta's id of an app, and its verify token; None: that was sealed with another secret key. Raises NotFound."""
    row = await conn.fetchrow(APPS, [id])
    if row is None:
        raise NotFound("There is no such app.", id=str(id))
    verify_token = _opened(key, id, "verify_token", row["verify_token"])
    return row["app_id"], None if verify_token is None else verify_token.decode()


@contextlib.contextmanager
def opening() -> Iterator[None]:
    """Raises Invalid if a secret of an app, or an account's token, was sealed with another secret key."""
    try:
        yield
    except Unsealable:
        raise Invalid(("app_secret", "sealed", SEALED)) from None


async def find_app(conn: Connection, key: Key, app_id: str) -> App | None:
    """The app by Meta's id for it."""
    row = await conn.fetchrow(APP_BY_ID, app_id)
    return None if row is None else open_app(key, row)


HANDSHAKE = "UPDATE whatsapp_apps SET verified_at = now() WHERE id = $1"
RECORD_CALLBACKS = "UPDATE whatsapp_apps SET last_callback_at = now(), unsigned_at = NULL WHERE id = ANY ($1)"
UNSIGNED = "UPDATE whatsapp_apps SET unsigned_at = now() WHERE id = $1"


async def record_verified(conn: Connection, app: UUID) -> None:
    """Record that the app's callback URL answered the handshake."""
    await conn.execute(HANDSHAKE, app)


async def record_unsigned(conn: Connection, app: UUID) -> None:
    """Record that a callback of this app arrived that was not signed with its secret."""
    await conn.execute(UNSIGNED, app)


async def record_callbacks(conn: Connection, apps: Sequence[UUID]) -> None:
    """Record that callbacks of these apps arrived with a valid signature."""
    await conn.execute(RECORD_CALLBACKS, sorted(apps))
