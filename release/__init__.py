"""Builds a release: wheel, source distribution, bill of materials, checksums. `make release` runs it.

Also checks locked dependencies against advisories, as part of `make check`.
"""
