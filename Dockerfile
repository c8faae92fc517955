# docker build --tag rocketmq-lake .
# docker run --rm --volume /data/rocketmq/store:/store:ro --volume /data/lake:/lake rocketmq-lake ingest /store --lake /lake
FROM python:3.12-slim-bookworm

# The version of the Java package is not pinned, because Debian removes versions with security holes.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home rmq \
    && install --directory --owner rmq /opt/rocketmq-lake

USER 10001
WORKDIR /opt/rocketmq-lake
ENV RMQ_LAKE_CACHE=/opt/rocketmq-lake/cache

# Install packages, then JARs, verified by the hashes in the lock files. After this step no network is needed. The first
# step also compiles the scans; a processor that cannot run this code compiles them once more (20 CPU-seconds).
COPY --chown=10001 requirements.lock spark-submit.sh ./
COPY --chown=10001 jobs/ jobs/
COPY --chown=10001 rmq_formats/ rmq_formats/
COPY --chown=10001 conf/ conf/
RUN ["./spark-submit.sh", "--version"]
RUN [".venv/bin/python", "-c", "from jobs.launch import engine, spark; home = engine.find_java_home(); [spark.fetch_jars(section, home) for section in ('delta', 's3')]"]

ENTRYPOINT ["/opt/rocketmq-lake/spark-submit.sh"]
CMD ["--help"]
