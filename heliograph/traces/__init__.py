"""Traces of messages: one from the request over queue, attempt and receipt to the webhook.

The context of a traced message is a row of `message_traces`, kept for a week; its id and those of its events say by
some of their bits that there is one (`base/process/spans.py`), so that no other message is looked for.
"""

from heliograph.traces.contexts import Kept, find, keep
from heliograph.traces.steps import attempt_begun, moved, of_event, waited

__all__ = ["Kept", "attempt_begun", "find", "keep", "moved", "of_event", "waited"]
