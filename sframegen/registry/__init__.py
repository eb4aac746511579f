"""Which section describes which code of a process: the registry, and the interfaces through which it is told."""
