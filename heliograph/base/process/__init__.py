"""What each process needs: settings, logs, signals, private files, crash points for tests."""
