"""From a launch program and the candidate's text to compiled kernels, in a process that has neither data nor candidate."""
