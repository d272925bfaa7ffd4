"""Contacts: the people that an organization writes to, singly (`records.py`) or by the file (`importing.py`,
`exporting.py`; `sheets.py` knows what files look like).

The rule nobody may break: a number has one contact in an organization, however often and by whomever it is written.
"""
