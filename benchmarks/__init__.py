"""Measured ratios, each within one run on one machine. `make bench` prints them all; nothing here is a test."""
