"""The guard: suspicious messages that it holds, and each organization's rules for them."""
