"""The tables: which ops exist, how each decomposes, lowers and renders. Imports no stage."""
