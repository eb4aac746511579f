"""What is installed here -> which parts work, each tried in a process of its own, and the command that gets the others."""
