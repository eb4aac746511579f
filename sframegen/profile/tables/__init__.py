"""Makes and caches, in parallel, the decoded tables of ELF files, which the kernel program and the walker of copies search."""
