"""ELF file -> DecodedTable: rows that the kernel program and the walker of copied stacks search; cached, made in parallel."""
