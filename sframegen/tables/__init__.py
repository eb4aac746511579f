"""Works on function tables: makes them smaller, converts them to another version, compares and merges them."""
