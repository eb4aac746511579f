"""What `add-tree` and `remove-tree` share: the files of a tree, and reports of what was done."""
