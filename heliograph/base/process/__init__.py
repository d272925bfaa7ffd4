"""What each process needs: settings, logs, measures and spans, its heartbeat, signals, private files, crash points for
tests."""
