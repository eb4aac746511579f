"""Whether a section is well formed, what its consumers would do with it, and whether it says what the CFI says."""
