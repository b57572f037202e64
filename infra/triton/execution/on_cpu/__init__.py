"""Without a GPU: the kernels' IR executed on arrays. A gate before the device, and no more."""
