"""What a process of ours needs: settings, logs, signals, files of its own, points at which tests let it crash."""
