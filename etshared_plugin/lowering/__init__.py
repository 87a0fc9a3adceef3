"""From programs to a file: backends, places of state, the record of what is shared."""
