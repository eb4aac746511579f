"""Memory of a process -> the description of the code of each object that it has loaded."""
