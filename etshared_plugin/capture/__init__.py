"""From a module to programs: its entry points traced, its state found and named."""
