"""Launch programs carried out on inputs, in a process that has nothing of the candidate's: on a GPU, or on this CPU."""
