"""The four roles played by the built-in catalogue: ways through loop trees, priced by simulation, with no model."""
