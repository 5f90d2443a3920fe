"""Pure: the same bytes in, the same value out."""
