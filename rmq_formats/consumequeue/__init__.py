"""The ConsumeQueue: for each queue of a topic, which record of the CommitLog is its n-th message."""
