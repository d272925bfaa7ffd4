"""The PostgreSQL that Heliograph brings along: installed, laid out, started, watched and stopped."""
