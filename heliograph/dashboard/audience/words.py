"""Texts for refusals of this room's forms, and for names used by rules. Each is translated for the reader."""

from __future__ import annotations

from collections.abc import Mapping

from heliograph.contacts import importing, sheets

#: Errors in a field of a person's form, or in an action on selected people.
CONTACT_FORM: Mapping[str, str] = {
    "name": "A name must have 1 to 200 characters.",
    "phone": "Enter the number with + and its country code, or as it is written in your organization's country.",
    "tags": "At most 50 tags of 1 to 64 characters, separated by commas.",
    "tag": "A tag must have 1 to 64 characters.",
    "tag.several": "Enter one tag at a time; put one that contains a comma in quotation marks.",
    "notes": "Notes can have at most 2,000 characters.",
    "same": "It already has this name.",
    "ids": "Select at least one person, and at most 200.",
}
#: Errors in a field of the opt-out forms.
OPT_OUT_FORM: Mapping[str, str] = {
    "phone": "Enter the number with + and its country code, or as it is written in your organization's country.",
    "opt_out_words": "At most 50 keywords of at most 64 characters, each with a letter or digit.",
    "stop_reply": "A reply can have at most 268 characters.",
    "start_reply": "A reply can have at most 268 characters.",
    "help_reply": "A reply can have at most 268 characters.",
    "reply_language": "Choose one of the languages that are offered.",
    "reason": "A reason can have at most 200 characters.",
}
#: What a column of an imported file can contain.
FIELDS: Mapping[str, str] = {
    "phone": "Phone number",
    "name": "Full name",
    "first_name": "First name",
    "last_name": "Last name",
    "tags": "Tags",
}
#: Encodings in which a file can be read, and whose letters they have; empty: all. Spreadsheets save a CSV file in that
#: of the system's language.
FILE_ENCODINGS: Mapping[str, str] = {
    **dict.fromkeys(("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"), ""),
    "cp1252": "Western European",
    "iso-8859-15": "Western European",
    "mac_roman": "Western European",
    "cp1250": "Central European",
    "cp1251": "Cyrillic",
    "cp1253": "Greek",
    "cp1254": "Turkish",
    "cp1256": "Arabic",
}
#: Errors in a file.
IMPORT_FORM: Mapping[str, str] = {
    "required": "Choose a file that is not empty, or paste something.",
    "format": "This is not a text table. In the spreadsheet, save the sheet as CSV and choose that file.",
    "length": "A file can be at most 200 MB.",
    "count": "There are 20 unfinished imports. Discard some of them, or continue those that are stopped.",
}
#: What has to be confirmed before an import, by field.
CONFIRM: Mapping[str, str] = {
    "strangers": "Confirm that the numbers from other countries are intended.",
    "unused": "Confirm that the numbers outside all known ranges are correct.",
}
#: Why rows of a file are rejected: the rule's wording, and the page's.
IMPORT_REASONS: Mapping[str, str] = {
    sheets.OPEN_QUOTE: "A quotation mark in this row, or in a row above it, is not closed",
    sheets.LONG_LINE: "The line has more than a million characters",
    importing.MORE_CELLS: "The row has more cells than the header row",
    importing.NO_NUMBER: "There is no phone number",
    importing.ROUNDED: "A spreadsheet has rounded the phone number: format that column as text",
    importing.DATE: "There is a date in place of the phone number",
    importing.NO_COUNTRY: "The number has no country code, and no country was chosen",
    importing.NO_SUCH: "This cannot be a phone number",
    importing.LONG_NAME: "The name has more than 200 characters",
    importing.CONTROL_NAME: "The name contains a control character",
    importing.LONG_TAG: "A tag has more than 64 characters",
    importing.CONTROL_TAG: "A tag contains a control character",
    importing.MANY_TAGS: "There are more than 50 tags",
    importing.OVERFULL: "The contact would have more than 50 tags",
}
#: Errors in a campaign's form, by field and issue.
CAMPAIGN_FORM: Mapping[str, str] = {
    "name.required": "Enter a name.",
    "name.length": "A name must have 1 to 200 characters.",
    "name.pattern": "A name must not contain control characters.",
    "to.empty": "There is nobody left to try again.",
    "check.differs": "The campaign was changed after it was checked. See who gets it, and when, before you send it.",
    "tags.length": "Enter 1 to 20 tags, separated by commas.",
    "import.unknown": "Choose one of the imports.",
    "numbers.length": "Enter 1 to 10,000 numbers, one per line.",
    "numbers.pattern": "None of these is a phone number. Write them as people in your country do, or with + and the "
    "country code.",
    "numbers.country": "None of these is a phone number with + and its country code. Your organization has no "
    "country, so other numbers cannot be read.",
    "day.format": "Enter a day and a time.",
    "day.skipped": "There is no such time on that day: the clocks go forward past it.",
    "unwritten.range": "Enter a number of days from 1 to 365.",
    "pace.range": "Enter the pace as a number of messages a minute, 1 or more.",
    "text.length": "Write a text.",
    "text.placeholder": "There is no such placeholder: use those that are offered.",
    "text.braces": "A placeholder lacks its braces on one side: write it like {{name}}.",
    "text.too_many_segments": "The text needs more than ten segments.",
    "without.length": "Enter at most 20 tags of 1 to 64 characters, separated by commas.",
    "without.exclusive": "Only contacts by tag can be left out by tag: empty this field, or choose contacts by tag.",
    "day.range": "The time must be between a minute ago and 365 days ahead.",
    "sender.unknown": "Choose one of those that are offered.",
    "number.unknown": "Choose one of those that are offered.",
    "number.missing": "There is no price list for this number yet: the operator enters it.",
    "template.unknown": "Choose one of those that are offered.",
    "template.category": "Campaigns can only send templates in the category utility.",
    "parameter.unknown": "Choose where this value comes from.",
    "parameter.required": "Enter the text that everybody gets.",
    "parameter.refused": "WhatsApp refuses this value: it must have 1 to 1,024 characters, and no line breaks or tabs.",
}
#: Stages of a campaign's recipients.
CAMPAIGN_STEPS: Mapping[str, str] = {
    "audience": "The audience",
    "allowed": "Can be messaged",
    "queued": "Queued or handed over",
    "sent": "Sent, whatever the outcome",
    "delivered": "Delivered",
    "read": "Read",
}
#: Why a campaign skipped somebody: as a filter, and in a row of the list.
CAMPAIGN_SKIPPED: Mapping[str, str] = {
    "opted_out": "Opted out",
    "recently_written": "Messaged too recently",
    "not_allowed": "Country not allowed",
    "unfit": "The text or a value does not fit",
    "no_number": "Not a phone number",
}
#: The source of a template's value.
CAMPAIGN_COLUMNS: Mapping[str, str] = {
    "phone": "their number",
    "name": "their full name",
    "first_name": "their first name",
    "last_name": "their last name",
}
#: The same, in sentences about people for whom it is not known.
CAMPAIGN_UNKNOWN: Mapping[str, str] = {
    "name": "full name",
    "first_name": "first name",
    "last_name": "last name",
}
