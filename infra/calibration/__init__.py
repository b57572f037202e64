"""A machine's constants refitted on the user's own device: what is measured there, how it is fitted, where it is kept."""
