"""The conformance suite on the readers and linkers of others: docs/measured/conformance.json."""
