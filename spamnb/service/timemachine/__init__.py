"""Another state of the model: a preview in a process of its own, and the exchange of the models."""
