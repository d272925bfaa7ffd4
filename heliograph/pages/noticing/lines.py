"""Notices in the reader's words: what happened, details, and a link. Several of a kind in quick succession are merged
into one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from heliograph.base.database import clock
from heliograph.base.money import micros
from heliograph.notices.kinds import KINDS
from heliograph.notices.reading import Noticed
from heliograph.pages import words
from heliograph.pages.languages import ReaderLocale
from heliograph.why.words import Kind, why

#: Notices of a kind are merged into one line if each came within this time of the next.
FOLDED = timedelta(hours=1)
#: Names listed in a merged line.
NAMED = 3
#: Notices of these kinds differ by their object, so they are never merged.
_NEVER_FOLDED = frozenset({"quota.used", "usage.day", "wallet.low"})


class Line(msgspec.Struct, frozen=True):
    """One line: the newest notice, what happened, details, and where to see more."""

    newest: Noticed
    title: str
    more: str
    path: str
    is_new: bool
    #: Which of a list's channels the path shows; "": the first, or it has none.
    channel: str = ""


def lines(known: ReaderLocale, notices: Sequence[Noticed]) -> list[Line]:
    """Notices, newest first, as lines."""
    groups: list[list[Noticed]] = []
    for one in notices:
        last = groups[-1][-1] if groups else None
        if (
            last is not None
            and one.kind not in _NEVER_FOLDED
            and _alike(one) == _alike(last)
            and last.created_at - one.created_at <= FOLDED
        ):
            groups[-1].append(one)
        else:
            groups.append([one])
    return [_line(known, group) for group in groups]


def _alike(one: Noticed) -> tuple[object, ...]:
    """The key by which notices are merged. Guessed codes, after a correct password, are kept separate, as are campaigns
    of the two channels, which are listed on pages of their own, and keys that have expired since."""
    return one.kind, one.mode, one.facts.get("step"), one.facts.get("channel") == "whatsapp", _is_over(one)


def _line(known: ReaderLocale, group: Sequence[Noticed]) -> Line:
    newest, is_new = group[0], any(one.is_new for one in group)
    kind = KINDS[newest.kind]
    if len(group) == 1:
        return Line(newest, title(known, newest), more(known, newest), kind.path.format(object=newest.object), is_new)
    names = list(dict.fromkeys(one.name for one in group if one.name))
    listed = ", ".join(names[:NAMED]) + (" …" if len(names) > NAMED else "")
    channel = "whatsapp" if newest.facts.get("channel") == "whatsapp" else ""
    return Line(newest, several(known, newest, len(group)), listed, kind.folded_path, is_new, channel)


def title(known: ReaderLocale, one: Noticed) -> str:
    """What happened, in a sentence."""
    text, number, name = known.text, known.number, one.name
    match one.kind:
        case "campaign.completed":
            return text("The campaign “%(name)s” is finished.", name=name)
        case "campaign.paused":
            return text("The campaign “%(name)s” is stalled.", name=name)
        case "campaign.approval":
            return text("The campaign “%(name)s” waits for a second person's approval.", name=name)
        case "campaign.approved":
            return text("Your campaign “%(name)s” was approved.", name=name)
        case "campaign.canceled":
            return text("Your campaign “%(name)s” was canceled.", name=name)
        case "campaign.failed":
            return text("The campaign “%(name)s” failed.", name=name)
        case "webhook.failing":
            return text("Webhooks to %(url)s fail one after the other.", url=name)
        case "webhook.disabled":
            return text("The endpoint %(url)s was disabled.", url=name)
        case "import.finished":
            return text("The import of “%(name)s” is finished.", name=name)
        case "sender.approved":
            return text("The sender ID “%(name)s” was approved.", name=name)
        case "sender.rejected":
            return text("The sender ID “%(name)s” was rejected.", name=name)
        case "sender.asked":
            return text("The operator asks about the sender ID “%(name)s”.", name=name)
        case "sender.suspended":
            return text("The sender ID “%(name)s” was suspended.", name=name)
        case "template.rejected":
            return text("The template “%(name)s” was rejected.", name=name)
        case "template.paused":
            return text("The template “%(name)s” is paused: people did not like what it said.", name=name)
        case "template.disabled":
            return text("The template “%(name)s” was disabled.", name=name)
        case "template.marketing":
            return text("WhatsApp now counts the template “%(name)s” as marketing, so it is not sent.", name=name)
        case "number.quality":
            return text("The quality of the number %(number)s has fallen.", number=name)
        case "key.ending" if _is_over(one):
            return text("The key “%(name)s” has expired.", name=name)
        case "key.ending":
            return text("The key “%(name)s” expires soon.", name=name)
        case "export.ready":
            return text("The file “%(name)s” is ready.", name=name)
        case "export.failed":
            return text("The file “%(name)s” could not be written.", name=name)
        case "key.network":
            return text("The key “%(name)s” was used from a new network.", name=name)
        case "sign_in.new":
            return text("Somebody signed in as you in a new browser.")
        case "sign_in.failed":
            if one.facts.get("step") == "code":
                return text("Somebody knows your password and is guessing codes.")
            return text("Several attempts to sign in as you have failed.")
        case "member.sign_in_failed":
            if one.facts.get("step") == "code":
                return text("Somebody knows the password of %(name)s and is guessing codes.", name=name)
            return text("Several attempts to sign in as %(name)s have failed.", name=name)
        case "member.joined":
            return text("%(name)s has joined the team.", name=name)
        case "usage.day":
            return text("More messages were sent in a day than the alert's threshold.")
        case "wallet.low":
            return text("The wallet has fallen below its alert.")
        case _:
            share = number(int(one.object)) if one.object.isdigit() else "–"
            return text("%(share)s %% of the quota is used.", share=share)


def several(known: ReaderLocale, newest: Noticed, number: int) -> str:
    """What happened several times, in a sentence."""
    count = known.count
    match newest.kind:
        case "campaign.completed":
            return count("%(num)s campaign is finished.", "%(num)s campaigns are finished.", number)
        case "campaign.paused":
            return count("%(num)s campaign is stalled.", "%(num)s campaigns are stalled.", number)
        case "campaign.approval":
            return count("%(num)s campaign waits for an approval.", "%(num)s campaigns wait for an approval.", number)
        case "campaign.approved":
            return count("%(num)s of your campaigns was approved.", "%(num)s of your campaigns were approved.", number)
        case "campaign.canceled":
            return count("%(num)s of your campaigns was canceled.", "%(num)s of your campaigns were canceled.", number)
        case "campaign.failed":
            return count("%(num)s campaign failed.", "%(num)s campaigns failed.", number)
        case "webhook.failing":
            return count("%(num)s endpoint is failing.", "%(num)s endpoints are failing.", number)
        case "webhook.disabled":
            return count("%(num)s endpoint was disabled.", "%(num)s endpoints were disabled.", number)
        case "import.finished":
            return count("%(num)s import is finished.", "%(num)s imports are finished.", number)
        case "sender.approved":
            return count("%(num)s sender ID was approved.", "%(num)s sender IDs were approved.", number)
        case "sender.rejected":
            return count("%(num)s sender ID was rejected.", "%(num)s sender IDs were rejected.", number)
        case "sender.asked":
            return count(
                "There is a question about %(num)s sender ID.", "There are questions about %(num)s sender IDs.", number
            )
        case "sender.suspended":
            return count("%(num)s sender ID was suspended.", "%(num)s sender IDs were suspended.", number)
        case "template.rejected":
            return count("%(num)s template was rejected.", "%(num)s templates were rejected.", number)
        case "template.paused":
            return count("%(num)s template is paused.", "%(num)s templates are paused.", number)
        case "template.disabled":
            return count("%(num)s template was disabled.", "%(num)s templates were disabled.", number)
        case "template.marketing":
            return count("%(num)s template became marketing.", "%(num)s templates became marketing.", number)
        case "number.quality":
            return count(
                "The quality of %(num)s number has fallen.", "The quality of %(num)s numbers has fallen.", number
            )
        case "key.ending" if _is_over(newest):
            return count("%(num)s key has expired.", "%(num)s keys have expired.", number)
        case "key.ending":
            return count("%(num)s key expires soon.", "%(num)s keys expire soon.", number)
        case "export.ready":
            return count("%(num)s file is ready.", "%(num)s files are ready.", number)
        case "export.failed":
            return count("%(num)s file could not be written.", "%(num)s files could not be written.", number)
        case "key.network":
            return count(
                "%(num)s key was used from a new network.",
                "%(num)s keys were used from a new network.",
                number,
            )
        case "sign_in.new":
            return count(
                "Somebody signed in as you in %(num)s new browser.",
                "Somebody signed in as you in %(num)s new browsers.",
                number,
            )
        case "sign_in.failed":
            return count(
                "On %(num)s occasion, several attempts to sign in as you have failed.",
                "On %(num)s occasions, several attempts to sign in as you have failed.",
                number,
            )
        case "member.sign_in_failed":
            return count(
                "On %(num)s occasion, several attempts to sign in as a member of the team have failed.",
                "On %(num)s occasions, several attempts to sign in as a member of the team have failed.",
                number,
            )
        case _:
            return count("%(num)s person has joined the team.", "%(num)s people have joined the team.", number)


def more(known: ReaderLocale, one: Noticed) -> str:
    """The details of a notice; empty: none."""
    text, number, facts = known.text, known.number, one.facts
    reason = str(facts.get("reason") or "")
    if one.kind in ("campaign.approved", "campaign.canceled"):
        return text("By %(name)s.", name=facts["by"]) if "by" in facts else ""
    if one.kind.startswith("campaign."):
        return _said(known, "campaign", reason)
    if one.kind == "webhook.disabled":
        return _said(known, "endpoint", reason)
    if one.kind == "import.finished":
        return text(
            "%(created)s new, %(updated)s changed, %(rejected)s rejected.",
            **{name: number(int(facts.get(name, 0))) for name in ("created", "updated", "rejected")},
        )
    if one.kind == "export.ready":
        rows = int(facts.get("rows", 0))
        return known.count("%(num)s row.", "%(num)s rows.", rows)
    if one.kind == "quota.used":
        left, total = (number(int(facts.get(name, 0))) for name in ("left", "total"))
        return text("%(left)s of %(total)s messages are left.", left=left, total=total)
    if one.kind == "key.network":
        network = facts.get("network") or "–"
        return text("From %(network)s; if it was none of your programs, rotate the key.", network=network)
    if one.kind == "sign_in.new":
        return text("From %(address)s; if it was not you, change your password.", address=facts.get("address") or "–")
    if one.kind == "sign_in.failed":
        return text(
            "Last from %(address)s. Each further try has to wait longer; if it was not you, change your password.",
            address=facts.get("address") or "–",
        )
    if one.kind == "member.sign_in_failed":
        return text("Last from %(address)s. Each further try has to wait longer.", address=facts.get("address") or "–")
    if one.kind == "member.joined":
        return text(words.ROLES.get(str(facts.get("role")), ""))
    if one.kind == "usage.day":
        messages, above = (number(int(facts.get(name, 0))) for name in ("messages", "above"))
        return text("%(messages)s on %(day)s, more than %(above)s.", messages=messages, day=one.object, above=above)
    if one.kind == "number.quality":
        return text("Meta rates it red.") if facts.get("rating") == "red" else text("Meta rates it yellow.")
    if one.kind == "wallet.low" and "currency" in facts:
        left, below = (known.money(micros(str(facts[name])) or 0, str(facts["currency"])) for name in ("left", "below"))
        return text("%(left)s is available, less than %(below)s.", left=left, below=below)
    if one.kind == "key.ending":
        return known.moment(datetime.fromisoformat(str(facts["until"])))
    return reason


def _is_over(one: Noticed) -> bool:
    """True if a key that was about to expire has done so."""
    return one.kind == "key.ending" and datetime.fromisoformat(str(one.facts["until"])) <= clock.now()


def _said(known: ReaderLocale, kind: Kind, reason: str) -> str:
    found = why(kind, reason)
    return "" if found is None else found.words(known.language).customer
