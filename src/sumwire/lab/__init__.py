"""Experiments: workloads, hosts and links on which Sumwire is measured."""
