"""Evaluation, tuning and reports. The daemon never imports this package."""
