"""Campaigns: one text or template for many recipients, at once or at a set time.

`plan.py` has the record, its states and what an organization may do; `audience.py` who gets it; `staging.py` how
recipients become messages; `counting.py` what became of them; `withdrawal.py` how what is staged is taken back. What
differs from channel to channel stands behind the seam of `channel.py`: `sms_channel.py` with `template.py`, its text,
and `whatsapp_channel.py` with `filling.py`, what fills its template.

The rule nobody may break: a recipient gets a campaign once and is never forgotten, whatever crashes. Whatever moves a
campaign on is one transaction that holds the campaign's row.
"""
