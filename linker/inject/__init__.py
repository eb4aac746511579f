"""Plans how to add a section to a linked file, writes and verifies the result, and appends an undo record."""
