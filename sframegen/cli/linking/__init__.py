"""What `link` needs: where a linker writes, and programs that take its place."""
