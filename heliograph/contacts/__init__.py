"""Contacts: the people that an organization writes to, one by one (`records.py`) or by the file (`importing.py`,
`exporting.py`; `sheets.py` knows what files look like).

The rule nobody may break: a number has one contact in an organization, whoever writes it and however often.
"""
