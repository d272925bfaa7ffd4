"""Words for what forms of this room refuse, and for what rules name. Each is looked up in the reader's language."""

from __future__ import annotations

from collections.abc import Mapping

#: What is wrong with a field of the form for a person, or of what is done to marked ones.
CONTACT_FORM: Mapping[str, str] = {
    "name": "A name has 1 to 200 characters.",
    "phone": "Write the number with + and its country code, or as people in your organization's country do.",
    "tags": "At most 50 tags of 1 to 64 characters, separated by commas.",
    "tag": "A tag has 1 to 64 characters.",
    "same": "This is its name already.",
    "ids": "Mark at least one person, and at most 200.",
}
#: How somebody came to opt out.
OPT_OUT_SOURCES: Mapping[str, str] = {
    "keyword": "wrote a word",
    "operator": "added by the operator",
    "organization": "added by your organization",
}
#: What is wrong with a field of the forms for opt-outs.
OPT_OUT_FORM: Mapping[str, str] = {
    "phone": "Write the number with + and its country code, or as people in your organization's country do.",
    "opt_out_words": "At most 50 words of at most 64 characters, each with a letter or digit.",
    "stop_reply": "A reply has at most 268 characters.",
    "start_reply": "A reply has at most 268 characters.",
    "help_reply": "A reply has at most 268 characters.",
    "reason": "A reason has at most 200 characters.",
}
