"""Memory of a process -> what describes the code of each object that it has loaded."""
