"""The sections of many objects and a linker map -> one section."""
