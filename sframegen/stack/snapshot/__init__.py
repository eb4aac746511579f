"""A process at one moment: its mappings, its memory, its threads. Live processes and core files both give one."""
