"""Templates, as needed for sending. Identity is account, name and language; `template_sync` follows Meta.

The rule nobody may break: a template that an operator disabled does not exist for a customer, whatever Meta says about
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool, is_down
from heliograph.base.errors import Refusal
from heliograph.base.loading_cache import LoadingCache
from heliograph.suppliers.whatsapp_cloud.bodies import TemplateLayout, layout
from heliograph.whatsapp.mirror.numbers import Number


class TemplateNotFound(Refusal):
    """This WhatsApp number has no template with this name and language."""

    code, status = "whatsapp_template_not_found", 400


class TemplateParameterMismatch(Refusal):
    """The template takes a different number of parameters."""

    code, status = "whatsapp_template_parameter_mismatch", 400


class TemplateNotApproved(Refusal):
    """This template is not currently approved."""

    code, status = "whatsapp_template_not_approved", 409


class TemplateNotSendable(Refusal):
    """This template has a component that this service cannot fill, such as an image header."""

    code, status = "whatsapp_template_not_sendable", 409


class Template(msgspec.Struct, frozen=True):
    """A template, as needed for sending."""

    organization_id: UUID
    id: UUID
    account_id: UUID
    name: str
    language: str
    #: utility, authentication or marketing.
    category: str
    #: approved, pending, rejected, paused, disabled, in_appeal or removed. Only approved templates are sent.
    status: str
    parameter_count: int
    layout: TemplateLayout
    #: How long Meta tries to deliver, seconds; None: the default of its category.
    ttl_seconds: int | None
    disabled_locally: bool
    #: When a paused one is checked again.
    held_until: datetime | None


_SENDING = """
t.organization_id, t.id, t.account_id, t.name, t.language, t.category, t.status, t.parameter_count, t.components,
t.parameter_format, t.ttl_seconds, t.disabled_locally, t.held_until
"""
LOAD = f"""
SELECT {_SENDING} FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[])
       AS asked (organization_id, account_id, name, language)
  JOIN whatsapp_templates t USING (organization_id, account_id, name, language)
"""
LOAD_BY_ID = f"""
SELECT {_SENDING} FROM unnest($1::uuid[], $2::uuid[]) AS asked (organization_id, id)
  JOIN whatsapp_templates t ON t.organization_id = asked.organization_id AND t.id = asked.id
"""

_Named = tuple[UUID, UUID, str, str]


class TemplateBook:
    """A cache of templates, at most half a second old."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._named: LoadingCache[_Named, Template] = LoadingCache(self._load_named, indivisible=is_down)
        self._by_id: LoadingCache[tuple[UUID, UUID], Template] = LoadingCache(self._load_by_id, indivisible=is_down)

    async def find(self, actor: Actor, number: Number, name: str, language: str) -> Template:
        """The template of the number's account. `language` is matched exactly, in Meta's notation (`en_US`).

        Raises TemplateNotFound, also if it is disabled locally or gone at Meta. The caller checks its status;
        the status of a template that is not approved is always read from the database.
        """
        key = (actor.organization_id, number.account_id, name, language)
        fresh, template = self._named.peek(key)
        if not fresh or template is None or template.status != "approved" or template.disabled_locally:
            template = await self._named.get(key, bypass_cache=True)
        if template is None or template.disabled_locally or template.status == "removed":
            raise TemplateNotFound(name=name, language=language)
        return template

    async def get(self, organization_id: UUID, template_id: UUID) -> Template | None:
        """The template by its id, in any state."""
        return await self._by_id.get((organization_id, template_id))

    async def _load_named(self, keys: Sequence[_Named]) -> dict[_Named, Template]:
        columns = [list(column) for column in zip(*keys, strict=True)]
        found = (_template(row) for row in await self._pool.fetch(LOAD, *columns))
        return {(one.organization_id, one.account_id, one.name, one.language): one for one in found}

    async def _load_by_id(self, keys: Sequence[tuple[UUID, UUID]]) -> dict[tuple[UUID, UUID], Template]:
        columns = [list(column) for column in zip(*keys, strict=True)]
        found = (_template(row) for row in await self._pool.fetch(LOAD_BY_ID, *columns))
        return {(one.organization_id, one.id): one for one in found}


def _template(row: asyncpg.Record) -> Template:
    parts = msgspec.json.decode(row["components"])
    return Template(
        row["organization_id"],
        row["id"],
        row["account_id"],
        row["name"],
        row["language"],
        row["category"],
        row["status"],
        row["parameter_count"],
        layout(parts, row["parameter_format"], row["category"]),
        row["ttl_seconds"],
        row["disabled_locally"],
        row["held_until"],
    )
