"""Subscribers of the events: the log, the JSONL trace, explain()."""
