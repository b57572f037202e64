"""Kernels of older NKI rewritten for a newer one: what is mechanical is done, the rest is marked and listed.

`dialect.py` says which NKI a file is of; `current.py` takes 0.2 to 0.6 on to 0.7 from the text alone; Beta 1 goes by
way of a run (`beta1_to_current.py`), because masks and index grids are only regular once shapes are known. Every
migration of a kernel that can be run is checked by running old and new on the same arrays (`proving.py`).
"""
