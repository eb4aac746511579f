"""Registers and a copy of the stack -> frames, with decoded tables."""
