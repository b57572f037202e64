"""Rules: changes of a kernel's loop tree that may make it faster. One file each."""
