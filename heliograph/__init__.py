"""Heliograph: SMS and WhatsApp behind one HTTP API, with PostgreSQL as its only service."""

__version__ = "0.1.0"
