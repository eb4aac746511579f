"""What is installed here -> which parts work, and the command that gets the others."""
