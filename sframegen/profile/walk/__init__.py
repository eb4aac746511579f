"""Walks copies of stacks with decoded tables: from registers and stack bytes to packed frames."""
