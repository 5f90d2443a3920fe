"""Figures of merit and their intervals."""
