"""Builds a release: wheel, source distribution, bill of materials, checksums. `make release` runs it."""
