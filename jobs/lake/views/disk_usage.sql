-- Each row is one topic of one store, with the number and the size of its messages in the lake; retries and dead letters have their consumer group.
WITH sizes AS (
  SELECT store_id, broker, topic, count(*) AS messages, CAST(sum(total_size) AS BIGINT) AS record_bytes,
    min(store_time) AS first_stored, max(store_time) AS last_stored
  FROM messages GROUP BY store_id, broker, topic
)
SELECT store_id, broker, topic,
  CASE WHEN substr(topic, 1, 7) = '%RETRY%' THEN 'retries' WHEN substr(topic, 1, 5) = '%DLQ%' THEN 'dead letters'
    ELSE 'messages' END AS content,
  CASE WHEN substr(topic, 1, 7) = '%RETRY%' THEN substr(topic, 8) WHEN substr(topic, 1, 5) = '%DLQ%' THEN substr(topic, 6)
    END AS consumer_group,
  messages, record_bytes, CAST(record_bytes AS DOUBLE) / messages AS average_bytes,
  CAST(record_bytes AS DOUBLE) * 100 / sum(CAST(record_bytes AS DOUBLE)) OVER (PARTITION BY store_id) AS percent,
  first_stored, last_stored
FROM sizes
