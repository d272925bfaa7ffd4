"""What the forms of both apps have in common: figures as people type them, fields left as they were shown, and the
guard's rules.
"""
