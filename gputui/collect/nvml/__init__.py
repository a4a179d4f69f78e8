"""The GPUs of this machine through NVML and GPM."""
