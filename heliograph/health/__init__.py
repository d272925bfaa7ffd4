"""Records of the installation's health: findings of checks, sizes of the database, web processes."""
