"""What the organization used and may still use: the quota of messages, and the wallet for WhatsApp."""
