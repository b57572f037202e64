"""Where tasks come from: the shipped ones, and references of the user's own."""
