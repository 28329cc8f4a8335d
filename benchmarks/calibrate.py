"""The Gaussian noise for a shift of 1: asked of a child, so that the parent stays small."""

from __future__ import annotations

import json
import sys

from overhand import Privacy
from overhand.accounting import gaussian_mu


def main(epsilon: str, delta: str) -> None:
    privacy = Privacy(float(epsilon), float(delta))
    print(json.dumps({"unit_sigma": 1 / gaussian_mu(privacy)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
