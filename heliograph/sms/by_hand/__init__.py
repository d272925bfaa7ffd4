"""For people who send by hand: saved texts, and a number of their own to try them on.

The rule nobody may break: a number is somebody's own only once they have entered a code that was sent to it.
"""
