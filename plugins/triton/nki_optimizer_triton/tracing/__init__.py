"""A candidate's Python, run once in a process of its own against stand-ins for torch and triton, and recorded."""
