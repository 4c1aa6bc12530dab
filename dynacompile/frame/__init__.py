"""Stage 1: meets calls. Native: the frame hook, regions, and the entries that code objects remember. Reached through `dynacompile.native.core()`."""
