"""Detached SFrame sections: small ELF files in a store, found with the build-id as DIR/.build-id/ab/cdef....sframe."""
