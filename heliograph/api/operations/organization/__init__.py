"""Operations on an organization's own affairs: its settings, what it was told, and files of what it has."""

from heliograph.api.operations.organization import exports, notices, settings

__all__ = ["exports", "notices", "settings"]
