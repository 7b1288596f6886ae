"""Starting local processes, listening to them and ending all of them."""
