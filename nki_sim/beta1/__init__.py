"""NKI 0.1 (Beta 1, `neuronxcc.nki`) on NumPy: numbers only, no time, for kernels that are to be migrated.

`running.run` executes a kernel and watches it: of each expression it keeps which tile it gave, how that was indexed
in terms of loop variables and named sizes, and which part of it a mask let through. `nki_sim.migrate` writes the
current kernel from these facts, and checks it against the numbers.
"""
