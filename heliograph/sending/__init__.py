"""The engine below every channel: what must be the same whatever a message travels by.

Messages are taken in (`intake`), dispatched (`dispatch`: claim, load, resolve what was lost, decide, begin, submit),
and what comes back is written down in batches (`results`). `attempts` holds the committed intention that stands before
each first byte, `flights` what this process has handed over. A channel is an object that the engine asks (`channel`).
"""
