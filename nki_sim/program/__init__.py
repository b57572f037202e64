"""A program as data: instructions, buffers, the regions that operands touch, passes of device loops."""
