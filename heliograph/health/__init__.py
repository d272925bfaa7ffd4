"""What is kept of how the installation does: findings of its checks, sizes of its database, its web processes."""
