"""What an organization sees of itself across its channels: all messages in one list, figures, the first steps.

Above the channels, below API, pages and command line; it composes what they tell and holds no SQL of its own.
"""
