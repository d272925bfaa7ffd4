"""Heliograph: SMS and WhatsApp behind one HTTP API, with PostgreSQL as its only service."""

import sys

__version__ = "0.1.0"

# If rich is installed, as it is with typer, structlog imports it for tracebacks that are never shown here: 77 modules,
# and 4.5 MB per process.
if "rich" not in sys.modules and "structlog" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog  # noqa: F401
    except KeyboardInterrupt:  # see `__main__`
        raise SystemExit(130) from None
    finally:
        del sys.modules["rich"]
