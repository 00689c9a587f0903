"""Counterfactual images: change a part of z, keep the rest, decode (section 5.3)."""
