"""Keeping a candidate in: its processes, files, system calls and limits. Shipped; standard library only."""
