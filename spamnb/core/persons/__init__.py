"""Personal corrections: what one person's labels add to the shared model, for that person alone."""
