"""What all channels share when they list and read messages.

The rule nobody may break: a message whose first attempt has begun is shown as under way, although its row says
`accepted` until a supplier has accepted it: only its queue row knows.
"""

from __future__ import annotations


def shown_status(row: str, under_way: str) -> str:
    """An SQL expression for the public status of a message; `row` is its table's alias.

    `under_way`: the channel's word for a message that was tried and has neither been accepted nor given up.
    """
    # Counted, because EXISTS may be planned as a hash of the whole queue.
    return f"""
    CASE WHEN {row}.status <> 'accepted' THEN {row}.status
         WHEN (SELECT count(*) FROM queue WHERE queue.id = {row}.id AND queue.attempt = 0) > 0 THEN 'accepted'
         ELSE '{under_way}' END"""


def shown_among(row: str, under_way: str, wanted: str) -> str:
    """An SQL condition: the public status is among those of the text array `wanted`, or that is NULL.

    The queue is asked only of messages that it can decide: of rows that wait when what waits is wanted.
    """
    return f"""
    ({wanted} IS NULL OR CASE WHEN {row}.status <> 'accepted' THEN {row}.status = ANY ({wanted})
                              WHEN NOT {wanted} && '{{accepted,{under_way}}}'::text[] THEN false
                              ELSE {shown_status(row, under_way)} = ANY ({wanted}) END)"""
