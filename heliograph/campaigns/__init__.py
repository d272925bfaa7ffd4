"""Campaigns: one text or template for many recipients, at once or at a set time.

`record.py` defines a campaign and finds it; `plan.py` has its states and what an organization may do; `audience.py`
decides who gets it; `staging.py` turns recipients into messages; `counting.py` counts their outcomes; `withdrawal.py`
takes staged messages back. Differences between channels are behind the interface in `channels/contract.py`:
`channels/sms.py` with the text in `template.py`, and `channels/whatsapp.py` with the template's parameters in
`filling.py`. Previews and reports are in `views`.

The rule nobody may break: a recipient gets a campaign exactly once, whatever crashes. Every step that advances a
campaign is one transaction that holds the campaign's row.
"""
