"""What verification finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """An error makes a program wrong to run; a note is nothing to act on."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong or worth knowing.

    ``code`` is stable and in lower case with hyphens; ``place`` names an object of
    the program and is empty for the program as a whole.
    """

    severity: Severity
    code: str
    message: str
    place: str = ""

    def to_json(self) -> dict[str, str]:
        return {
            "severity": self.severity.value,
            "code": self.code,
            "message": self.message,
            "place": self.place,
        }
