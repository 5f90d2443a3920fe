"""The MIME structure of a message: entities, encodings, parts, attachments."""
