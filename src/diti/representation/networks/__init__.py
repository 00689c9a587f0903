"""What models are made of: encoders, decoders and their parts, and how their weights are kept."""
