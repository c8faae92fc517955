"""One run of `ingest`: what was asked, what tasks make of a range, how queues and index go along, and the story."""
