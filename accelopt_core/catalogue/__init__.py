"""The four roles played by the built-in catalogue: which transform where, priced by prediction, with no model."""
