"""A linked file and a section -> a plan, its writes, the verified result; and the way to the original."""
