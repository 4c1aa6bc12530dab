"""Frames being interpreted, and code that is followed once where it repeats: calls of modules, rounds of loops, arms of branches."""
