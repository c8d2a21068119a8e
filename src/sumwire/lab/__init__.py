"""Experiments: workloads, hosts and links to measure Sumwire on."""
