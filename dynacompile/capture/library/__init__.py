"""Python's own functions and operators over values of any kind, and from real objects to values (`kinds.py`)."""
