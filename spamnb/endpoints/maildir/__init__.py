"""The face that reads what people do with their mail: it learns from where messages lie."""
