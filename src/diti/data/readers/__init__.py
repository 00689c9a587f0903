"""Data sets in their original layouts, one file each: is this path of that kind, and what is in it."""
