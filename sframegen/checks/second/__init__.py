"""The call frame information as pyelftools reads it -> differences from a section. `cfi` has no part in it."""
