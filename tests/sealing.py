"""Sealed texts at rest, and the key with which tests open them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from heliograph.base.process.settings import Settings
from heliograph.sealing import text_keys

SETTINGS = Settings(secret_key="a secret key for texts that lie at rest")


@pytest.fixture
def armed() -> Iterator[None]:
    """Lets this process open sealed texts until the test ends."""
    before = list(text_keys._armed)
    text_keys.arm(SETTINGS)
    yield
    text_keys._armed[:] = before
