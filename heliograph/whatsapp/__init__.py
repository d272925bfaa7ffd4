"""WhatsApp: accepted, dispatched to Meta, moved by callbacks, paid from a wallet, and mirrored from Meta's tables."""
