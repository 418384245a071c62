"""metrics: from a profile to figures, each with the samples behind it. `measure` is the stage; `registry` lists them."""
