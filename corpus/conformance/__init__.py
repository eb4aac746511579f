"""The conformance suite on the readers and linkers of others: docs/reports/conformance.md."""
