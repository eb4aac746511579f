"""Finds breaches of the SFrame specification in the bytes of a section."""
