"""Saved texts: shapes and handlers. The rules are `sms.by_hand.saved_texts`."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.api.door.operation import Call, operation
from heliograph.api.shapes.fields import CreatedAt, Items, Success, Time
from heliograph.base.database.clock import iso, iso_or_none
from heliograph.base.errors import Invalid, NotFound
from heliograph.sms.accepting.accept import MAX_TEXT
from heliograph.sms.by_hand import saved_texts
from heliograph.sms.by_hand.saved_texts import MAX_NAME, SavedTextExists, TooManySavedTexts

Name = Annotated[
    str, Meta(min_length=1, max_length=MAX_NAME, pattern=r"^[^\x00-\x1f\x7f]*$", examples=["Order shipped"])
]
Body = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT, examples=["Hello {{first_name}}, it is on its way."])]


class WriteText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A text to save, and its name."""

    name: Annotated[Name, Meta(description="Its name; unique, regardless of case.")]
    body: Annotated[Body, Meta(description="The text; a campaign fills in placeholders such as `{{name}}`.")]


class ChangeText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Changes to a text. Omitted fields are not changed."""

    name: Annotated[Name | None, Meta(description="The new name.")] = None
    body: Annotated[Body | None, Meta(description="The new text.")] = None


class SavedText(msgspec.Struct):
    """A saved text."""

    id: Annotated[UUID, Meta(description="Id of the text.")]
    name: Annotated[str, Meta(description="Its name.")]
    body: Annotated[str, Meta(description="What it says.")]
    created_at: CreatedAt
    updated_at: Annotated[Time, Meta(description="When it was last changed.")]
    used_at: Annotated[Time | None, Meta(description="When it was last sent from the dashboard, to the minute.")]


class SavedTextAnswer(msgspec.Struct, rename="camel"):
    """The text in its current state."""

    success: Success
    saved_text: Annotated[SavedText, Meta(description="The text.")]


class SavedTextList(msgspec.Struct):
    """All saved texts, by name: at most 200."""

    success: Success
    items: Items[SavedText]


class SavedTextRemoved(msgspec.Struct):
    """The text has been removed."""

    success: Success


async def list_saved_texts(call: Call) -> SavedTextList:
    """List saved texts.

    Live and test mode share them.
    """
    return SavedTextList(True, [_shown(one) for one in await saved_texts.list_all(call.conn, call.actor)])


async def canonical(body: WriteText) -> WriteText:
    """The text under its name as it is stored. Raises Invalid."""
    return msgspec.structs.replace(body, name=saved_texts.checked(body.name, body.body))


@operation(status=201, canonical=canonical, live_only=True, refusals=(SavedTextExists, TooManySavedTexts))
async def save_text(call: Call, body: WriteText) -> SavedTextAnswer:
    """Save a text."""
    made = await saved_texts.create(call.conn, call.actor, name=body.name, body=body.body)
    return SavedTextAnswer(True, _shown(made))


async def changes(body: ChangeText) -> ChangeText:
    """The changes requested. Raises Invalid, also if there are none."""
    if body == ChangeText():
        raise Invalid(("name", "required", "give what to change: `name` or `body`"))
    return msgspec.structs.replace(body, name=saved_texts.checked(body.name, body.body))


@operation(canonical=changes, live_only=True, refusals=(NotFound, SavedTextExists))
async def change_saved_text(call: Call, text_id: UUID, body: ChangeText) -> SavedTextAnswer:
    """Change a saved text."""
    await saved_texts.change(call.conn, call.actor, id=text_id, name=body.name, body=body.body)
    return SavedTextAnswer(True, _shown(await saved_texts.get(call.conn, call.actor, id=text_id)))


@operation(live_only=True, refusals=(NotFound,))
async def remove_saved_text(call: Call, text_id: UUID) -> SavedTextRemoved:
    """Remove a saved text."""
    await saved_texts.get(call.conn, call.actor, id=text_id)
    await saved_texts.remove(call.conn, call.actor, id=text_id)
    return SavedTextRemoved(True)


def _shown(one: saved_texts.SavedText) -> SavedText:
    return SavedText(
        id=one.id,
        name=one.name,
        body=one.body,
        created_at=iso(one.created_at),
        updated_at=iso(one.updated_at),
        used_at=iso_or_none(one.used_at),
    )
