"""Other callers of the same state: EAGLE, disaggregated prefill, other drafts."""
