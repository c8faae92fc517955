"""`browse`: a store or a lake as pages in a browser of this machine, read-only."""

from importlib.util import find_spec
from pathlib import Path

import click

from jobs.command.configuration import config_option
from jobs.command.options import broker_conf_option, commitlog_option, one_release_option
from jobs.command.places import STORE_OR_LAKE
from jobs.console.exit_codes import ExitCode
from jobs.launch.arguments import file_system_options
from jobs.launch.java import SetupError
from rmq_formats.release import Release

_NEEDED = ("jinja2", "starlette", "uvicorn")
_EPILOG = """\
\b
Examples:
  rmq-lake browse /data/rocketmq/store
  rmq-lake browse --port 8080 --no-open LAKE      # on a server; then: ssh -L 8080:127.0.0.1:8080 SERVER

\b
Exit codes: 0 ended by Ctrl-C · 1 failed · 2 usage
"""


@click.command(epilog=_EPILOG)
@click.argument("location", metavar="STORE|LAKE", type=STORE_OR_LAKE)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port of 127.0.0.1; default: a free one."
)
@click.option("--no-open", is_flag=True, help="Print the address without opening a browser.")
@commitlog_option
@broker_conf_option
@click.option("--broker", metavar="NAME", help="For a lake: the label of the broker to show, or the id of its store.")
@one_release_option
@config_option
def command(  # noqa: PLR0913 - one argument an option
    *,
    location: str,
    port: int,
    no_open: bool,
    commitlog: tuple[str, ...] | None,
    broker_conf: Path | None,
    broker: str | None,
    release: str | None,
) -> ExitCode:
    """
    Serve read-only pages of a store or a lake on 127.0.0.1: files, messages, topics, groups, tables.

    Prints one line with the address, which includes a token. Ctrl-C ends the server.
    """
    if not all(map(find_spec, _NEEDED)):
        raise SetupError(f"the pages need {', '.join(_NEEDED)}: pip install 'rocketmq-lake[browse]'")
    from jobs.browse.server import serve
    from jobs.query.lake_tables import is_lake
    from jobs.query.place import Place

    store, lake = (None, location) if is_lake(location, file_system_options()) else (location, None)
    named = Release.of(release) if release else None
    return serve(Place(store, lake, commitlog, broker_conf, broker, named), port, opens=not no_open)
