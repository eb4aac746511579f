"""Code that the commands share: options, messages, work on several files, and how a run ends."""
