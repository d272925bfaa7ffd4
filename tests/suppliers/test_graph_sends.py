"""Sends to the Graph API simulator: what is accepted, what is refused, and in which order it looks."""

from __future__ import annotations

from tests.suppliers.graph_peer import USER, graph, signed, until


async def test_a_template_is_sent_delivered_and_read() -> None:
    async with graph() as (simulator, client, hook):
        wamid = await client.remind(biz_opaque_callback_data="ours-1")
        await until(lambda: len(hook.statuses(wamid)) == 3)
        assert hook.statuses(wamid) == ["sent", "delivered", "read"]
        assert all(signed(body, headers["x-hub-signature-256"]) for body, headers in hook.callbacks)
        sent = hook.items("statuses")[0]
        assert sent["biz_opaque_callback_data"] == "ours-1"
        assert sent["pricing"] == {"billable": True, "pricing_model": "PMP", "type": "regular", "category": "utility"}
        (message,) = simulator.sends_to(USER)
        assert (message.id, message.statuses) == (wamid, ["sent", "delivered", "read"])
        assert simulator.doubled == {}
