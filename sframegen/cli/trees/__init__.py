"""Code that `add-tree`, `remove-tree` and `check` share: finding the files of a directory tree, and reports on them."""
