"""What every package may use and what knows nothing of GPUs: safe text, standard streams, and the
version. That is here, where nothing is imported: what every layer writes into its files must not
reach up to the package's face, whose names come from the library."""

VERSION = "0.1.0"
