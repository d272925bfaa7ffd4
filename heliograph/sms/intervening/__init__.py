"""What an operator does with one message, whichever organization's it is: give it up, send it by another supplier, say
how it ended.

The rule nobody may break: each is done for a reason, which the organization reads in its audit log.
"""
