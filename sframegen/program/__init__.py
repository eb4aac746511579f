"""What the program is made of and runs on: its own packages, its processes, the signals that end them."""
