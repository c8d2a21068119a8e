"""Models whose gradients are sparse, or thought to be: recommendation, language, vision. By name in `WORKLOADS`."""

from sumwire.lab.workloads.base import Data, Workload, reproducible
from sumwire.lab.workloads.catalog import WORKLOADS, find
from sumwire.lab.workloads.density import Row, densities, describe, gradients, table

__all__ = [
    "WORKLOADS",
    "Data",
    "Row",
    "Workload",
    "densities",
    "describe",
    "find",
    "gradients",
    "reproducible",
    "table",
]
