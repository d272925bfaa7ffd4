"""Operations on the organization itself: its settings, notices and exports."""

from heliograph.api.operations.organization import exports, notices, settings

__all__ = ["exports", "notices", "settings"]
