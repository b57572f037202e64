"""A real Neuron SDK: routes from a kernel to a NEFF, and the profiler that runs and times it. Shipped."""
