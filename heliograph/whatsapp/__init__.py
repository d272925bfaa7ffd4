"""WhatsApp: accepting messages, sending them through Meta, applying its callbacks, charging, and mirroring accounts."""
