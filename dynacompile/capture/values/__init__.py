"""Tracked values: what capture knows of Python objects. `kinds.py` makes them of real objects; each file is one kind, or what some kinds share."""
