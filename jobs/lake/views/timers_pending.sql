-- Each row is one timer message that was neither delivered nor cancelled.
WITH timed AS (
  SELECT store_id, broker, uniq_key, properties['REAL_TOPIC'] AS topic, min(physical_offset) AS physical_offset,
    max(CAST(properties['TIMER_OUT_MS'] AS BIGINT)) AS due_timestamp, max(properties['TIMER_DEL_UNIQKEY']) AS takes_back
  FROM messages WHERE topic = 'rmq_sys_wheel_timer'
  GROUP BY store_id, broker, uniq_key, properties['REAL_TOPIC']
), delivered AS (
  SELECT DISTINCT store_id, uniq_key, topic FROM messages
  WHERE properties['TIMER_OUT_MS'] IS NOT NULL AND topic <> 'rmq_sys_wheel_timer'
)
SELECT t.store_id, t.broker, t.physical_offset, t.topic, t.uniq_key, t.due_timestamp
FROM timed t
LEFT JOIN delivered d ON d.store_id = t.store_id AND d.topic = t.topic AND d.uniq_key = t.uniq_key
LEFT JOIN timed b ON b.store_id = t.store_id AND b.takes_back LIKE concat('%', t.uniq_key)
WHERE t.takes_back IS NULL AND d.uniq_key IS NULL AND b.takes_back IS NULL
