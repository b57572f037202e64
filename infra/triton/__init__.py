"""The second wing's engine room: Triton kernels on an NVIDIA GPU, traced, compiled, checked, executed and timed."""
