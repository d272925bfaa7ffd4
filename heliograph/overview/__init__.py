"""What an organization sees of itself across its channels: all messages in one list, figures, the first steps.

Above the channels, below API, pages and command line; it combines their results and contains no SQL, save what
operators see and find of all organizations at once (`installation`, `searching`), which no room below owns.
"""
