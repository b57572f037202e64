"""A machine's constants refitted on the user's own device: what is measured, how it is fitted, where it is kept."""
