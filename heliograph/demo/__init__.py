"""The demo organization of `heliograph up`: `seeding` creates it, and `credentials` is the file that opens it."""
