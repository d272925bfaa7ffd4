"""What the forms of both apps have in common: figures as people type them, fields left as they were shown, the
guard's rules and an organization's, and the question before a shorter retention.
"""
