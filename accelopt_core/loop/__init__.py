"""The loop itself: rounds and lanes, what is told on the way, and the state that decisions change."""
