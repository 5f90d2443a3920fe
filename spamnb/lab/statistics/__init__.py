"""Metrics of an evaluation and their confidence intervals."""
