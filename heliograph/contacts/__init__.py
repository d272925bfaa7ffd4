"""Contacts: the people an organization writes to, as single records (`records.py`) or in files (`importing.py`,
`exporting.py`; `sheets.py` knows their formats).

The rule nobody may break: a number has one contact in an organization, however often and by whomever it is added.
"""
