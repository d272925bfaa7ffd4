"""Administration: the operators of the installation, its settings, and the audit log."""
