"""Ask another spam filter for its verdict on a message."""
