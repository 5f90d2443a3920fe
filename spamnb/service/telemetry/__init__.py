"""Counters, histograms and status."""
