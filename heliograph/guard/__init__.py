"""The guard against SMS pumping: finds ranges of numbers for which codes are requested to earn from the messages, and
holds or refuses messages to them.

`windows` and `conversion` contain the detection rules, without a database or a clock; `judging` applies them in each
worker to messages about to be sent, and `sharing` adds what the other workers saw; `holds` stores findings and the
messages held; `rules` stores each organization's policy; `book` tells web processes which ranges to refuse. The rule
nobody may break: an accepted message is never dropped here. It waits where an operator sees it, and ends like any
other, at its deadline.
"""
