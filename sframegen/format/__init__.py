""".sframe bytes <-> FunctionTable: the records, one rule's words, encoder, decoder, search."""
