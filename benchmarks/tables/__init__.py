"""The tables of measured figures in README.md and docs/, and how they are made from benchmarks/results/."""

from benchmarks.tables import dme, lab, lattice, plan, server, sites, sparse, switch, training
from benchmarks.tables.table import Table

TABLES: dict[str, Table] = {
    **lattice.TABLES,
    **training.TABLES,
    **sparse.TABLES,
    **dme.TABLES,
    **server.TABLES,
    **switch.TABLES,
    **plan.TABLES,
    **sites.TABLES,
    **lab.TABLES,
}
