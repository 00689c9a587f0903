"""What a model found, without labels: its axes seen, ordered, and the images that lie along them."""
