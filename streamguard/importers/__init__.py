"""Importers: recordings of other tools as events. One class a format; `events_of` runs them."""

from streamguard.importers.detect import EVENTS
from streamguard.importers.intake import Imported, Intake, Refuse, raise_it
from streamguard.importers.recording import AUTO, CHOICES, Recording, events_of, recording

__all__ = [
    "AUTO",
    "CHOICES",
    "EVENTS",
    "Imported",
    "Intake",
    "Recording",
    "Refuse",
    "events_of",
    "raise_it",
    "recording",
]
