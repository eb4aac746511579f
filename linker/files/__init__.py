"""An open file and new content -> the file replaced, wholly or not at all."""
