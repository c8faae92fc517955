"""The lake: tables declared once, Parquet files written by tasks, commits made by the driver alone."""
