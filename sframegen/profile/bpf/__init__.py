"""The kernel program that walks user stacks, and what loads it: samples -> counted stacks."""
