"""Pages of numbers: Graphs and What-if."""
