"""Detached SFrame sections: small ELF files in a store, which is searched by build-id: DIR/.build-id/ab/cdef....sframe."""
