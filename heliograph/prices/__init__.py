"""What an SMS costs, and what a customer pays for it: suppliers' rate cards and organizations' price lists.

    CSV ── rows ── tariffs (imported whole, or not at all) ── Book ── what one message costs, in memory

Both are tariffs: dated rates by network, prefix or country. The rule nobody may break: an amount is whole millionths of
a named currency, fixed when the message is accepted (price) or handed over (cost), and never recalculated.
"""
