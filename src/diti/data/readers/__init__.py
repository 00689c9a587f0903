"""Data sets in their original layouts, a file each: is this path of that kind, and what is in it."""
