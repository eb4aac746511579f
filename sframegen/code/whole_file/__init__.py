"""A file -> the frames of all its functions, and rows for code without call frame information."""
