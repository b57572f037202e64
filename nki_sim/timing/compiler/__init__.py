"""What the compiler does to a traced program before it runs: drops loads, spills, orders loads, places buffers.

Only what device measurements show of it, and only for timing: numbers are computed from the program as traced.
"""
