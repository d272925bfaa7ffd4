"""An organization's view of itself across channels: all messages in one list, figures, the first steps.

Above the channels, below API, pages and command line; it combines their results and contains no SQL except for what
operators see and search across all organizations (`installation`, `searching`), which no package below owns.
"""
