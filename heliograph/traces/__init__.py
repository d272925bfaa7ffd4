"""Traces of messages: one from the request over queue, attempt and receipt to the webhook.

The context of a traced message is a row of `message_traces`, kept for a week; some bits of its id and of its events'
ids indicate that there is one (`base/process/spans.py`), so that no look-up is made for other messages.
"""

from heliograph.traces.contexts import TraceContext, find, keep
from heliograph.traces.steps import attempt_begun, moved, of_event, waited

__all__ = ["TraceContext", "attempt_begun", "find", "keep", "moved", "of_event", "waited"]
