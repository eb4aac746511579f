"""Sections -> files: plans, applies and verifies the change that puts a section into an ELF file.

A package of sframegen.
"""
