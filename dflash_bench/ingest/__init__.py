"""ingest: from captures to profiles. `sources.ingest` and `sources.resolve` are the stage."""
