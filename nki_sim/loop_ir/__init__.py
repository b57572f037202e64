"""The loop tree: what a kernel does, as loops over instructions whose places are linear in the loops' counters."""
