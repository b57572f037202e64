"""From a kernel to a NEFF, apart from everything else, and what the compiler makes of a reference."""
