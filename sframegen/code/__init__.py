"""The effect of instructions on the stack: functions disassembled, and each one's frame followed along its paths."""
