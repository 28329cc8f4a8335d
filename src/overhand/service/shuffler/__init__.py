"""The shuffling service: it learns who, never what."""

from overhand.service.shuffler.adding import SealerPool, added_by
from overhand.service.shuffler.admission import Admission, Overloaded, ShufflerMetrics
from overhand.service.shuffler.app import ShufflerApp
from overhand.service.shuffler.filling import Filler
from overhand.service.shuffler.folding import Folder
from overhand.service.shuffler.relaying import Relay
from overhand.service.shuffler.running import ShufflerSettings, run_shuffler
from overhand.service.shuffler.sending import NotTaken, Sender
from overhand.service.shuffler.watching import Watch

__all__ = [
    "Admission",
    "Filler",
    "Folder",
    "NotTaken",
    "Overloaded",
    "Relay",
    "SealerPool",
    "Sender",
    "ShufflerApp",
    "ShufflerMetrics",
    "ShufflerSettings",
    "Watch",
    "added_by",
    "run_shuffler",
]
