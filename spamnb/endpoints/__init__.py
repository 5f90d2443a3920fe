"""Network and file endpoints: they use the services and never each other."""
