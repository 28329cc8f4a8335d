"""`overhand`, with a shuffling service whose reports all go the ordinary way, through Starlette."""

from __future__ import annotations

from overhand.__main__ import main
from overhand.service.shuffler import running
from overhand.service.web import Impatient

if __name__ == "__main__":
    vars(running)["Uploads"] = Impatient
    main()
