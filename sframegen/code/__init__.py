"""Disassembles functions, and follows the frame of each along its paths, from the effects of instructions on the stack."""
