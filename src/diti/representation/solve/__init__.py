"""DiTi and PDAE in closed form: one pass over images, then a few matrix decompositions (docs/closed-form.md).

The path: stretches (of time-steps) → look (pixel axes, whitened features) → sums (the pass) → keep → order → times
→ fit (the linear decoder) → solution.
"""
