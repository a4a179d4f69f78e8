"""Hardware counters of a GPU, sampled by a process of its own, and what they say of kernels."""
