"""Named stacks -> files that other tools and people open."""
