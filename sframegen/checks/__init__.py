"""Is a section well formed, accepted by those who read it, true to the call frame information? A module for each question."""
