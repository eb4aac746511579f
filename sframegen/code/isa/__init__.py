"""Describes instruction sets: a module for each machine, with the effects of its instructions on the frame."""
