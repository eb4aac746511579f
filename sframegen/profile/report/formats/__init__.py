"""Encodes profiles with named stacks in the file formats that people and other tools open."""
