"""Pure functions: the same bytes always give the same value."""
