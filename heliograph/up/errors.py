"""Why `heliograph up` cannot start."""


class UpError(Exception):
    """`up` cannot start; the message says what to do."""
