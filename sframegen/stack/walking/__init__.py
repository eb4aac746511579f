"""Registers and memory -> the frames of one stack."""
