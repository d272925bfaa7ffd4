"""Alphabets of short messages: GSM 7-bit with its national tables, and how text is cut into segments."""
