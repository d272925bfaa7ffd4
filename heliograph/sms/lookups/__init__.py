"""Number look-ups, made before a message is sent if a route depends on the network: the accounts of look-up suppliers
(`accounts`), and their use by a worker (`asking`).

    dispatch ── asks, and the message waits ──► number_lookups ──► a worker asks the supplier
        ▲                                                                  │
        └────────────── the network, by number, for 90 days ◄──────────────┘

The rule nobody may break: no message waits longer than its look-up supplier's setting; then its number's range decides.
"""
