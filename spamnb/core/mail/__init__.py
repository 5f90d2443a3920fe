"""From the bytes of a message to its headers, text and attachments."""
