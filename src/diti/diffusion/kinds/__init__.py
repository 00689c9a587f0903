"""Diffusion models that people bring: a file per kind, see `diti.diffusion.backbone`."""
