"""A linked file and a section -> a plan, what it writes, and the result verified; an undo record at its end."""
