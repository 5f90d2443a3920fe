"""Counts of other filters: one reader for each format, and one mapper to features of this model."""
