"""A section detached from its file <-> a small ELF file in a store, found with the build-id: DIR/.build-id/ab/cdef....sframe."""
