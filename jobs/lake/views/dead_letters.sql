-- Each row is one dead letter: the message, the group that failed to consume it, and the number of attempts.
SELECT store_id, broker, physical_offset, store_time, substr(topic, 6) AS consumer_group, uniq_key, keys, tags,
  reconsume_times,
  CASE WHEN reconsume_times > 1 THEN concat('not consumed after ', CAST(reconsume_times AS STRING), ' tries')
    ELSE 'moved to the dead-letter queue without a retry' END AS reason,
  coalesce(properties['DLQ_ORIGIN_TOPIC'], properties['RETRY_TOPIC']) AS origin_topic,
  coalesce(properties['DLQ_ORIGIN_MESSAGE_ID'], properties['ORIGIN_MESSAGE_ID']) AS origin_message_id, body
FROM messages WHERE substr(topic, 1, 5) = '%DLQ%'
