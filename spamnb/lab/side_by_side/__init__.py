"""The verdicts of this filter beside those of another one, on the same mail."""
