"""API keys: shapes and handlers. The rules are `accounts.api_keys`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.accounts.api_keys import issued, lifecycle, scopes
from heliograph.accounts.api_keys.lifecycle import KeyLimited, TooManyActiveKeys
from heliograph.accounts.api_keys.scopes import PROFILES, SCOPES, LiveKeyRequired
from heliograph.api.door.operation import Call, operation
from heliograph.api.shapes.fields import CreatedAt, Items, Success, Time
from heliograph.base.database.clock import iso, iso_or_none, now
from heliograph.base.errors import Problems


class CreateApiKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An API key to create, with either `profile` or `scopes`."""

    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=100,
            description="What the key is for.",
            examples=["web shop"],
            extra_json_schema={"pattern": r"\S"},
        ),
    ]
    profile: Annotated[
        Annotated[str, Meta(extra_json_schema={"enum": list(PROFILES)})] | None,
        Meta(description="A named set of scopes, all of which the creating key must hold."),
    ] = None
    scopes: Annotated[
        Annotated[
            list[Annotated[str, Meta(extra_json_schema={"enum": list(SCOPES)})]], Meta(min_length=1, max_length=100)
        ]
        | None,
        Meta(description="Individual scopes, instead of a profile. The creating key must hold each of them."),
    ] = None
    mode: Annotated[
        Literal["live", "test"] | None,
        Meta(
            description=(
                "Defaults to the mode of the creating key. Test keys reach no supplier, use no quota and can "
                "create only test keys."
            )
        ),
    ] = None
    allowed_ips: Annotated[
        Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=100)] | None,
        Meta(
            description=(
                "IP addresses and CIDR networks that the key may be used from, all within those of the creating key; "
                "empty: the same as the creating key."
            ),
            examples=[["203.0.113.0/24"]],
        ),
    ] = []
    expires_at: Annotated[
        Annotated[datetime, Meta(tz=True)] | None,
        Meta(
            description=(
                "When the key expires: a time in the future, with a time zone. Leave out for a key that does not "
                "expire."
            )
        ),
    ] = None


class ApiKey(msgspec.Struct):
    """An API key, without its secret."""

    id: Annotated[UUID, Meta(description="Id of the key (not its secret).")]
    name: Annotated[str, Meta(description="What the key is for.")]
    prefix: Annotated[str, Meta(description="Start of the secret: `hg_live_` or `hg_test_`.")]
    last4: Annotated[str, Meta(description="Last four characters of the secret.")]
    profile: Annotated[
        str | None, Meta(description="The profile that the scopes came from; null if they were listed individually.")
    ]
    scopes: Annotated[list[str], Meta(description="What the key may do.")]
    mode: Annotated[Literal["live", "test"], Meta(description="Messages sent with a `test` key reach nobody.")]
    status: Annotated[
        Literal["active", "suspended", "revoked", "expired"],
        Meta(description="Only `active` keys can be used, and only they count toward the limit of five."),
    ]
    allowed_ips: Annotated[list[str], Meta(description="Networks that the key may be used from; empty: anywhere.")]
    last_used_at: Annotated[
        Time | None, Meta(description="When the key was last used, to the minute; null if it never was.")
    ]
    created_at: CreatedAt
    expires_at: Annotated[Time | None, Meta(description="When the key expires; null: never.")]
    revoked_at: Annotated[Time | None, Meta(description="When the key was revoked; null if it was not.")]


class ApiKeyCreated(msgspec.Struct, rename="camel"):
    """The new key and its secret, which is shown only in this response."""

    success: Success
    api_key: Annotated[ApiKey, Meta(description="The key.")]
    secret: Annotated[str, Meta(description="The secret to authenticate with. Store it now: it is not shown again.")]


class ApiKeyRevoked(msgspec.Struct, rename="camel"):
    """The key in its current state."""

    success: Success
    api_key: Annotated[ApiKey, Meta(description="The key.")]


class ApiKeyList(msgspec.Struct):
    """Keys of the same mode as the requesting key, newest first, including those revoked or expired in the last 90
    days."""

    success: Success
    items: Items[ApiKey]


async def list_api_keys(call: Call) -> ApiKeyList:
    """List API keys."""
    return ApiKeyList(True, [_shown(each) for each in await issued.list_all(call.conn, call.actor)])


async def canonical(body: CreateApiKey) -> CreateApiKey:
    """Scopes and networks as a set, each spelled as it is stored. Raises Invalid with all errors."""
    wrong = Problems()
    with wrong.gathering():
        scopes.named_scopes(body.profile, body.scopes)
    with wrong.gathering():
        name = lifecycle.checked_name(body.name)
    with wrong.gathering():
        networks = lifecycle.networks(body.allowed_ips or ())
    wrong.report()
    return msgspec.structs.replace(
        body,
        name=name,
        scopes=None if body.scopes is None else sorted(set(body.scopes)),
        allowed_ips=sorted(set(networks)),
    )


@operation(
    status=201,
    canonical=canonical,
    presently=lambda call, body: lifecycle.check_end(body.expires_at, now()),
    has_secret=True,
    refusals=(LiveKeyRequired, KeyLimited, TooManyActiveKeys),
)
async def create_api_key(call: Call, body: CreateApiKey) -> ApiKeyCreated:
    """Create an API key.

    The secret is shown only in this response. A key can grant only scopes that it holds itself, and a key with a daily
    limit of its own cannot create keys.
    """
    key, secret = await lifecycle.issue(
        call.conn,
        call.actor,
        name=body.name,
        profile=body.profile,
        scopes=body.scopes,
        mode=body.mode,
        allowed_ips=body.allowed_ips or (),
        expires_at=body.expires_at,
    )
    return ApiKeyCreated(True, _shown(key), secret)


@operation(while_stopped=True)
async def revoke_api_key(call: Call, api_key_id: UUID) -> ApiKeyRevoked:
    """Revoke an API key.

    Permanent, and effective everywhere within one second. Revoking a key again changes nothing.
    """
    return ApiKeyRevoked(True, _shown(await lifecycle.revoke(call.conn, call.actor, id=api_key_id)))


def _shown(key: issued.ApiKey) -> ApiKey:
    return ApiKey(
        id=key.id,
        name=key.name,
        prefix=key.prefix,
        last4=key.last4,
        profile=key.profile,
        scopes=key.scopes,
        mode="live" if key.mode == "live" else "test",
        status=key.status,  # type: ignore[arg-type]
        allowed_ips=key.allowed_ips,
        last_used_at=iso_or_none(key.last_used_at),
        created_at=iso(key.created_at),
        expires_at=iso_or_none(key.expires_at),
        revoked_at=iso_or_none(key.revoked_at),
    )
