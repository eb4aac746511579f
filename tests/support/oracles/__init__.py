"""Judges of sframegen's output that share no code with it: GNU readelf's text, libsframe's look-up, and their comparison."""
