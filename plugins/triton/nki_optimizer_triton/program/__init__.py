"""A candidate's function as data: what it allocates, fills, launches and returns, and nothing else of it."""
