"""One file per method: the loss that is trained, and nothing else."""
