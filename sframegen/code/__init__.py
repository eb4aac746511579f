"""What the instructions do to the stack: functions disassembled, and each one's frame followed along its paths."""
