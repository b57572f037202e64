"""How close an output has to be: closeness, excuses, what narrow types do to a result."""
