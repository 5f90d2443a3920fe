"""Evaluation, tuning and reports. The daemon never loads this package."""
