-- Each row is one consumer group and one queue that it reads, with its lag as of the newest run: in messages, and in seconds since the oldest message that it has not consumed.
WITH newest AS (
  SELECT store_id, broker, consumer_group, topic, queue_id, next_offset,
    row_number() OVER (PARTITION BY store_id, consumer_group, topic, queue_id ORDER BY run DESC) AS age
  FROM consumer_offsets WHERE kind = 'consumer'
), queued AS (
  SELECT store_id, topic, queue_id, queue_offset, store_timestamp FROM messages
  WHERE transaction_type NOT IN ('prepared', 'rollback')
), ends AS (
  SELECT store_id, topic, queue_id, max(queue_offset) + 1 AS end_offset FROM queued GROUP BY store_id, topic, queue_id
), logs AS (
  SELECT store_id, max(store_timestamp) AS newest_timestamp FROM messages GROUP BY store_id
), waiting AS (
  SELECT o.store_id, o.consumer_group, o.topic, o.queue_id, min(q.store_timestamp) AS oldest_timestamp
  FROM newest o JOIN queued q
    ON q.store_id = o.store_id AND q.topic = o.topic AND q.queue_id = o.queue_id AND q.queue_offset >= o.next_offset
  WHERE o.age = 1
  GROUP BY o.store_id, o.consumer_group, o.topic, o.queue_id
)
SELECT o.store_id, o.broker, o.consumer_group, o.topic, o.queue_id, o.next_offset, e.end_offset,
  e.end_offset - o.next_offset AS lag,
  CASE WHEN e.end_offset IS NULL THEN NULL WHEN w.oldest_timestamp IS NULL THEN CAST(0 AS DOUBLE)
    ELSE CAST(l.newest_timestamp - w.oldest_timestamp AS DOUBLE) / 1000 END AS lag_seconds
FROM newest o
LEFT JOIN ends e ON e.store_id = o.store_id AND e.topic = o.topic AND e.queue_id = o.queue_id
LEFT JOIN logs l ON l.store_id = o.store_id
LEFT JOIN waiting w ON w.store_id = o.store_id AND w.consumer_group = o.consumer_group AND w.topic = o.topic
  AND w.queue_id = o.queue_id
WHERE o.age = 1 AND o.next_offset IS NOT NULL
