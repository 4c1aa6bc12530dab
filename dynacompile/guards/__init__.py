"""Stage 2: is this a call that an entry was made for? Guards as native programs, and the Python twin that explains them."""
