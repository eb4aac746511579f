"""The tables of a run -> one HTML page that needs no network, and CSV."""
