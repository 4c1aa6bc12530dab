"""The nouns that stages hand to each other: frozen, printable, verifiable. Imports no stage."""
