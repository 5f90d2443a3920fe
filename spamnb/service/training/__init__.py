"""Bulk training and bulk scoring from files."""
