"""Feature rows and words as bytes."""
