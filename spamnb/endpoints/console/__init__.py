"""The HTTP API of the console: one table of operations, tokens, limits, OpenAPI."""
