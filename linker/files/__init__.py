"""An open file and new content -> the file replaced, completely or not at all."""
