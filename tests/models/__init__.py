"""Models as people write them, with small random weights."""
