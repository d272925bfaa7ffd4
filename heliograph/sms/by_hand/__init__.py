"""What people who send by hand keep: texts to use again, and a number of their own to try them on.

The rule nobody may break: a number is somebody's own only once a code that was sent there came back.
"""
