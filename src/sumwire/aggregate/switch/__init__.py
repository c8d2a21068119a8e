"""Aggregation inside the Linux kernel: loads the programs of bpf/, feeds them with jobs, and shows what they count."""
