"""Traffic classes: how one-time codes, transactional and marketing messages are treated.

Owns the list of classes (`kinds.py`) and quiet hours: when they are, by country (`countries.py`), and how long a
message waits for them (`quiet.py`). Pure; owns no database table. The rule nobody may break: only marketing ever waits
for quiet hours.
"""
