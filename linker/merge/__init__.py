"""Merges the SFrame sections of many objects into one, by a linker map."""
