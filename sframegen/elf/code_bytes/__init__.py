"""Recognises padding and calls in code bytes without a disassembler."""
