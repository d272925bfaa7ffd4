"""Mails to people: an outbox, written in the transaction of the event, and the work that empties it.

`outbox` is the table and its rules; `work` sends. The texts of mails are kept with their subject (`people/mailing`).
"""
