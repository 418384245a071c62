"""metrics: from a profile to figures, each with its samples. `measure` is the stage, `registry` lists the figures."""
