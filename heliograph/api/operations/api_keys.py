"""API keys: shapes and handlers. The rules are `accounts.api_keys`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.accounts import api_keys
from heliograph.accounts.api_keys import PROFILES, SCOPES, LiveKeyRequired, TooManyActiveKeys
from heliograph.api.door.operation import Call, operation
from heliograph.api.shapes.fields import CreatedAt, Items, Success, Time
from heliograph.base.clock import iso


class CreateApiKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a new key is for and what it may do: either `profile` or `scopes`."""

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
        Meta(description="A named set of scopes; each must be one that the creating key holds."),
    ] = None
    scopes: Annotated[
        Annotated[
            list[Annotated[str, Meta(extra_json_schema={"enum": list(SCOPES)})]], Meta(min_length=1, max_length=100)
        ]
        | None,
        Meta(description="The scopes themselves, instead of a profile."),
    ] = None
    mode: Annotated[
        Literal["live", "test"] | None,
        Meta(description="Left out: the creating key's. Test keys reach no supplier, cost no quota, create test keys."),
    ] = None
    allowed_ips: Annotated[
        list[Annotated[str, Meta(max_length=64)]],
        Meta(
            max_length=100,
            description="Addresses and CIDR networks that the key works from; none: from anywhere.",
            examples=[["203.0.113.0/24"]],
        ),
    ] = []
    expires_at: Annotated[
        Annotated[datetime, Meta(tz=True)] | None,
        Meta(description="From then on the key is refused; in the future, with a zone. Left out: never."),
    ] = None


class ApiKey(msgspec.Struct):
    """A key, without its secret."""

    id: Annotated[UUID, Meta(description="Id of the key; it is no secret.")]
    name: Annotated[str, Meta(description="What the key is for.")]
    prefix: Annotated[str, Meta(description="What the secret begins with: `hg_live_` or `hg_test_`.")]
    last4: Annotated[str, Meta(description="What it ends with.")]
    profile: Annotated[str | None, Meta(description="The named set that its scopes came from; null: they were listed.")]
    scopes: Annotated[list[str], Meta(description="What it may do.")]
    mode: Annotated[Literal["live", "test"], Meta(description="Messages of a test key reach nobody.")]
    status: Annotated[
        Literal["active", "suspended", "revoked", "expired"], Meta(description="Only `active` ones count toward five.")
    ]
    allowed_ips: Annotated[list[str], Meta(description="Networks that it works from; none: from anywhere.")]
    last_used_at: Annotated[Time | None, Meta(description="To the minute.")]
    created_at: CreatedAt
    expires_at: Annotated[Time | None, Meta(description="Refused from then on; null: never.")]
    revoked_at: Annotated[Time | None, Meta(description="When it was revoked; null: it was not.")]


class ApiKeyCreated(msgspec.Struct, rename="camel"):
    """The new key, and its secret. It is shown only here."""

    success: Success
    api_key: Annotated[ApiKey, Meta(description="The key.")]
    secret: Annotated[str, Meta(description="What to authenticate with. Keep it: it is not shown again.")]


class ApiKeyRevoked(msgspec.Struct, rename="camel"):
    """The key as it is now."""

    success: Success
    api_key: Annotated[ApiKey, Meta(description="The key.")]


class ApiKeyList(msgspec.Struct):
    """Keys of the asking key's mode, newest first, those that ended within 90 days included."""

    success: Success
    items: Items[ApiKey]


async def list_api_keys(call: Call) -> ApiKeyList:
    """List API keys."""
    return ApiKeyList(True, [_shown(each) for each in await api_keys.list_all(call.conn, call.actor)])


async def canonical(body: CreateApiKey) -> CreateApiKey:
    """Scopes and networks as a set, each spelled as it is stored. Raises Invalid."""
    api_keys.named_scopes(body.profile, body.scopes)
    return msgspec.structs.replace(
        body,
        name=api_keys.checked_name(body.name),
        scopes=None if body.scopes is None else sorted(set(body.scopes)),
        allowed_ips=sorted(set(api_keys.networks(body.allowed_ips))),
    )


@operation(status=201, canonical=canonical, has_secret=True, refusals=(LiveKeyRequired, TooManyActiveKeys))
async def create_api_key(call: Call, body: CreateApiKey) -> ApiKeyCreated:
    """Create an API key.

    The secret is shown here and never again. A key grants only scopes that it holds itself.
    """
    key, secret = await api_keys.issue(
        call.conn,
        call.actor,
        name=body.name,
        profile=body.profile,
        scopes=body.scopes,
        mode=body.mode,
        allowed_ips=body.allowed_ips,
        expires_at=body.expires_at,
    )
    return ApiKeyCreated(True, _shown(key), secret)


async def revoke_api_key(call: Call, api_key_id: UUID) -> ApiKeyRevoked:
    """Revoke an API key.

    For good, and on every process within one second. A second time changes nothing.
    """
    return ApiKeyRevoked(True, _shown(await api_keys.revoke(call.conn, call.actor, id=api_key_id)))


def _shown(key: api_keys.ApiKey) -> ApiKey:
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
        last_used_at=_time(key.last_used_at),
        created_at=iso(key.created_at),
        expires_at=_time(key.expires_at),
        revoked_at=_time(key.revoked_at),
    )


def _time(at: datetime | None) -> str | None:
    return None if at is None else iso(at)
