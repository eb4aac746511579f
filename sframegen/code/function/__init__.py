"""Derives the frame at each instruction of a function, and whether that is proven."""
