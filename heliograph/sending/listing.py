"""What lists and reads of every channel's messages share.

The rule nobody may break: a message whose first attempt was begun is shown as under way, though its row says `accepted`
until somebody has taken it: that it was begun stands in its queue row alone.
"""

from __future__ import annotations


def shown_status(row: str, under_way: str) -> str:
    """An SQL expression for the status of a message as it is shown; `row` names its row.

    `under_way`: the channel's word for a message that was tried, and that nobody is known to have taken or given up.
    """
    # Counted, because EXISTS may be planned as a hash of the whole queue.
    return f"""
    CASE WHEN {row}.status <> 'accepted' THEN {row}.status
         WHEN (SELECT count(*) FROM queue WHERE queue.id = {row}.id AND queue.attempt = 0) > 0 THEN 'accepted'
         ELSE '{under_way}' END"""
