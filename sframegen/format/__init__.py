"""Encodes a FunctionTable to the bytes of a .sframe section, decodes such bytes, and searches them."""
