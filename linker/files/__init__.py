"""Replaces files with new content, completely or not at all."""
