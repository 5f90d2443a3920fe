"""Worlds of persons who want different mail, and models that can serve these persons."""
