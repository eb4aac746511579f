"""Instructions -> their effects on the frame: a file for each instruction set."""
