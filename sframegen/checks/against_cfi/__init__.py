"""A section and the call frame information of its file -> where they differ."""
