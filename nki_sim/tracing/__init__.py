"""From a kernel's Python to a program: sessions, tensors, loops marked and run for some of their passes."""
