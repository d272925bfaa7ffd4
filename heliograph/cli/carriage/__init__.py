"""Commands about the way of messages: send, look up, hold back, who carries them, what comes in."""
