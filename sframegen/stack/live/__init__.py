"""Stops the threads of a live process, and reads their registers and memory."""
