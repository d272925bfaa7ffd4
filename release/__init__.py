"""Builds a release: wheel, source distribution, bill of materials, checksums. `make release` runs it.

And compares what is locked with advisories, which `make check` does.
"""
