"""What `verify` holds against the log: index and ConsumeQueue files, each explained or named as a finding."""
