"""Submissions to suppliers: built for the dispatcher (`written`), and rebuilt for operators (`rebuilding`)."""
