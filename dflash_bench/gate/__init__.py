"""gate: may this change be merged? A policy, a decision, and the forms in which a pull request shows it."""
