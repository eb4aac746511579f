"""Opens perf events, and decodes the records in their ring buffers."""
