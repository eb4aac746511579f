"""The effects of instructions on the frame: a file for each instruction set."""
