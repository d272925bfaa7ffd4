"""Traffic classes: what follows from a message being a one-time code, transactional or marketing.

Owns the table of classes (`kinds.py`) and quiet hours: which they are where (`countries.py`), and until when a message
waits for them (`quiet.py`). Pure; holds no table. The rule nobody may break: only marketing ever waits for quiet hours.
"""
