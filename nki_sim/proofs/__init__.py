"""What holds of a program for all inputs: every element written, nothing unwritten used, equal to another program."""
