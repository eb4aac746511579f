"""What merge says beside what linkers say, for the objects of sources made by a seed."""
