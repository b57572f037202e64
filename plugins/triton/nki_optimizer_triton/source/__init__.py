"""A candidate's text: which of it are kernels, what they may say, and the module that Triton is given of it."""
