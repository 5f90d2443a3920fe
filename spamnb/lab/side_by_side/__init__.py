"""The verdicts of this filter and of another one on the same mail."""
