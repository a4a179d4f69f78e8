"""What every package may use and what knows nothing of GPUs: safe text, standard streams."""
