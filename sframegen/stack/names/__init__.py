"""Addresses -> names of functions as people write them."""
