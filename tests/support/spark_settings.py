"""Settings of Spark for tests, whose tables have some rows."""

# What a statement costs there: 50 tasks for each look at a Delta log, and compiled code for each plan.
SMALL = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
