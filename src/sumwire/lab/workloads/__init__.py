"""Models with gradients that are sparse, or believed to be: recommendation, language, vision."""

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
