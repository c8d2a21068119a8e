"""Aggregation by packets, in user space: a worker's link to whatever adds on the path, and a process that adds."""
