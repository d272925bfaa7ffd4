"""The guard against the bill: which numbers are sent codes for somebody else's profit, and what is done about it.

`windows` and `conversion` are the rules, without a database or a clock; `judging` applies them in each worker, to what
is about to go out, and `sharing` tells it what the other workers saw; `holds` has what they found, and what became of
the messages; `rules` has what each organization wants done; `book` tells web processes which ranges they refuse. The
rule nobody may break: a message that was accepted is never dropped here. It waits where an operator sees it, and ends
as any other does, at its deadline.
"""
