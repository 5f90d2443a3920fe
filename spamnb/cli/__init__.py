"""You type this; it prints."""
