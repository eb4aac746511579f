"""The call frame information as pyelftools reads it -> what a section says otherwise. Nothing of `cfi` has a part in it."""
