"""Worlds of persons who want different mail, and the models that may serve them."""
