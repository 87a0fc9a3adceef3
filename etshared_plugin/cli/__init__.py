"""The ``etshared`` command."""

from .command_line import main

__all__ = ["main"]
