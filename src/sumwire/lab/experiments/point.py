"""A process that measures one point: `python -m sumwire.lab.experiments.point NAME POINT`, rows on the last line."""

from __future__ import annotations

import json
import sys

from sumwire.lab.experiments import find


def main(name: str, point: str) -> None:
    rows = list(find(name).measure(json.loads(point)))
    print(json.dumps(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
