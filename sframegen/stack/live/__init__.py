"""A live process -> its threads, stopped, with their registers and memory."""
