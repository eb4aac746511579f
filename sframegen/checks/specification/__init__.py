"""Finds breaches of the specification in the bytes of a section."""
