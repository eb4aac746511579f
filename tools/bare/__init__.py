"""README's commands → what they do in roots that have nothing: `make test-bare`."""
