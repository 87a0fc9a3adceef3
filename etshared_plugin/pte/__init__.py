"""Reading of program files without torch and without executing them."""

from .pte_file import PteFile, Segment

__all__ = ["PteFile", "Segment"]
