"""From a launch program and the candidate's text to compiled kernels, in a process of their own."""
