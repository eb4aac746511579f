"""The program's own packages and libraries, its worker processes, and the signals that end them."""
