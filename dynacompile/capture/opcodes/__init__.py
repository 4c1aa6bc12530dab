"""Rows for the instructions of `cpython.instructions`: `table.py` is what a row is, `groups.py` has all of them."""
