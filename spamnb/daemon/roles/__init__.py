"""What each process of the daemon does."""
