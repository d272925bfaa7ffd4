"""Numbers are looked up before they are sent to, where a route asks for their network: the accounts of look-up
suppliers (`accounts`), and what a worker does with them (`asking`).

    dispatch ── asks, and the message waits ──► number_lookups ──► a worker asks the supplier
        ▲                                                                  │
        └────────────── the network, by number, for 90 days ◄──────────────┘

The rule nobody may break: no message waits longer than its look-up supplier's setting; then its number's range decides.
"""
