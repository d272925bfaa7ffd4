"""The engine shared by all channels: everything that must work the same whatever channel a message uses.

Messages are accepted (`intake`), dispatched (`dispatch`: claim, load, resolve what was lost, decide, begin, submit),
and results are recorded in batches (`results`). `attempts` holds the committed intention that precedes each first byte,
`flights` what this process has handed over. A channel is an object that the engine calls (`channel`).
"""
