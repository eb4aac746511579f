"""A process at one moment: its mappings, its memory, its threads."""
