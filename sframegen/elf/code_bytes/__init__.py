"""Bytes of code that are recognised without a disassembler: padding, and calls. A file for each machine."""
