"""`diti sweep FILE.yaml --out DIR`: many runs from one file; it skips what is done and continues what stopped."""
