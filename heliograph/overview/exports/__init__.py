"""Exports: what somebody asked for as a file, written by a worker and kept in the database until they fetch it.

The rule nobody may break: a file is handed to whoever asked for it and to nobody else, as long as their role still lets
them see what is in it; and what they may not see in a list never gets into it.
"""
