"""Models as people use them: encode, decode, save and load."""
