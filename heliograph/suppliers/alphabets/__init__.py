"""What short messages are written in: the GSM 7-bit alphabet with its national tables, and how text is cut."""
