"""Device work of one step, as plain functions of tensors; every kernel beside its torch oracle."""
