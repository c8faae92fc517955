-- Each row is one message in a queue and one group that reads the queue but has not consumed the message yet, as of the newest run.
WITH newest AS (
  SELECT store_id, consumer_group, topic, queue_id, next_offset,
    row_number() OVER (PARTITION BY store_id, consumer_group, topic, queue_id ORDER BY run DESC) AS age
  FROM consumer_offsets WHERE kind = 'consumer'
)
SELECT m.store_id, m.broker, o.consumer_group, m.topic, m.queue_id, m.queue_offset, o.next_offset, m.physical_offset,
  m.store_time, m.uniq_key, m.keys, m.tags
FROM newest o JOIN messages m
  ON m.store_id = o.store_id AND m.topic = o.topic AND m.queue_id = o.queue_id AND m.queue_offset >= o.next_offset
WHERE o.age = 1 AND o.next_offset IS NOT NULL AND m.transaction_type NOT IN ('prepared', 'rollback')
