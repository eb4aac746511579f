"""Plans, applies and verifies the change that adds a section to an ELF file.

A package of sframegen.
"""
