"""Recognises padding and calls in code bytes without a disassembler. There is a module for each machine."""
