"""Make `python -m jobs.launch` the same as `rmq-lake`."""

from jobs.launch import main

main()
