"""perf_event_open: events to sample, and the records in their ring buffers."""
