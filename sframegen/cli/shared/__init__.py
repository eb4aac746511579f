"""What the commands share: messages, several files, how a run ends."""
