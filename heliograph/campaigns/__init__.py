"""Campaigns: one text or template for many recipients, at once or at a set time.

`record.py` has one campaign and how it is found; `plan.py` its states and what an organization may do; `audience.py`
who gets it; `staging.py` how recipients become messages; `counting.py` what became of them; `withdrawal.py` how staged
messages are taken back. What differs between channels is behind the interface in `channels/contract.py`:
`channels/sms.py` with the text in `template.py`, and `channels/whatsapp.py` with the template's parameters in
`filling.py`. What people look at before a campaign and behind it is in `views`.

The rule nobody may break: a recipient gets a campaign once and is never forgotten, whatever crashes. Whatever advances
a campaign is one transaction that holds the campaign's row.
"""
