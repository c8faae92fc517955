"""RocketMQ's on-disk formats: bytes in, values out. No Spark, no storage, no network."""
