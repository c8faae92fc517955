-- Each row is one half message and its state: committed, rolled back, checked again (a later half message replaces it), or open.
WITH half AS (
  SELECT * FROM messages
  WHERE topic IN ('RMQ_SYS_TRANS_HALF_TOPIC', 'RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC') OR transaction_type = 'prepared'
), ended AS (
  SELECT store_id, prepared_transaction_offset AS half_offset, max(transaction_type) AS ended_as,
    max(physical_offset) AS end_offset
  FROM messages WHERE transaction_type IN ('commit', 'rollback') GROUP BY store_id, prepared_transaction_offset
), newest AS (
  SELECT store_id, uniq_key, max(physical_offset) AS newest_offset FROM half GROUP BY store_id, uniq_key
), undecided AS (
  SELECT h.store_id, h.physical_offset, h.queue_id, h.queue_offset, h.topic
  FROM half h LEFT JOIN ended e ON e.store_id = h.store_id AND e.half_offset = h.physical_offset
  WHERE e.half_offset IS NULL
), closed AS (
  -- An op message refers to half messages by queue offset; with RocksDB, to one half message by physical offset.
  SELECT u.store_id, u.physical_offset, min(op.physical_offset) AS op_offset
  FROM undecided u JOIN messages op
    ON op.store_id = u.store_id AND op.physical_offset > u.physical_offset
    AND ((op.topic = 'RMQ_SYS_TRANS_OP_HALF_TOPIC' AND u.topic = 'RMQ_SYS_TRANS_HALF_TOPIC' AND op.queue_id = u.queue_id
        AND concat(',', CAST(op.body AS STRING), ',') LIKE concat('%,', CAST(u.queue_offset AS STRING), ',%'))
      OR (op.topic = 'RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC'
        AND op.properties['TRANS_OFFSET'] = CAST(u.physical_offset AS STRING)))
  GROUP BY u.store_id, u.physical_offset
)
SELECT h.store_id, h.broker, h.physical_offset, h.store_time, h.uniq_key, h.keys, h.tags,
  h.properties['PGROUP'] AS producer_group, coalesce(h.properties['REAL_TOPIC'], h.topic) AS topic,
  CASE WHEN e.ended_as = 'commit' THEN 'committed' WHEN e.ended_as = 'rollback' THEN 'rolled back'
    WHEN n.newest_offset > h.physical_offset THEN 'checked again' WHEN c.op_offset IS NOT NULL THEN 'rolled back'
    ELSE 'open' END AS state,
  coalesce(e.end_offset, c.op_offset) AS end_offset, h.properties['TRANSACTION_CHECK_TIMES'] AS checks
FROM half h
LEFT JOIN ended e ON e.store_id = h.store_id AND e.half_offset = h.physical_offset
LEFT JOIN newest n ON n.store_id = h.store_id AND n.uniq_key = h.uniq_key
LEFT JOIN closed c ON c.store_id = h.store_id AND c.physical_offset = h.physical_offset
