"""From a verdict to an action and to header fields."""
