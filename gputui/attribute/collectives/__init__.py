"""Collectives: found in each process, matched among the ranks of a job."""
