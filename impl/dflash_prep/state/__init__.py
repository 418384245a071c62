"""Who holds which KV memory, and what one decode step reserves."""
