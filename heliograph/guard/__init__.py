"""The guard against SMS pumping: which numbers are sent codes for somebody else's profit, and what is done about it.

`windows` and `conversion` contain the detection rules, without a database or a clock; `judging` applies them in each
worker to messages about to be sent, and `sharing` tells it what the other workers saw; `holds` stores findings and the
messages held; `rules` stores each organization's policy; `book` tells web processes which ranges to refuse. The rule
nobody may break: an accepted message is never dropped here. It waits where an operator sees it, and ends like any
other, at its deadline.
"""
