"""Linear probes on arrays of codes and their scores; nothing here knows about networks."""
