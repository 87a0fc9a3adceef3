"""Programs whose state is among their inputs and outputs, and changes to them."""
