"""How the program starts, spreads work over processes, and ends."""
