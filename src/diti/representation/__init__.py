"""The code z of an image: how it is cut by time-step, computed, trained and decoded."""
