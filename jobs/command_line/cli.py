"""
The command line: loads commands when they are called, and is the only place that turns exceptions into exit codes.

A command returns an ExitCode, or None if it ended without findings.
"""

import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import takewhile
from time import monotonic
from types import FrameType

import click

from jobs import __version__
from jobs.command_line import COMMAND_TABLE
from jobs.command_line.configuration import bind_environment_variables, leaf_commands
from jobs.command_line.engine import uses_s3
from jobs.command_line.old_names import explain_old_name
from jobs.command_line.result_printer import COMMAND_LINE_META_KEY
from jobs.console import process
from jobs.console.lines import line_width_limit, wrap_line
from jobs.console.log import JsonLines, log_as_json, log_message
from jobs.console.process import CONSOLE_SCRIPT, OutputClosedError, tool_command
from jobs.console.result import ExitCode
from jobs.launch.arguments import SPARK_OPTIONS_WITH_VALUE, find_option_value, given_spark_options, split_arguments
from jobs.launch.engine import NO_SPARK_MESSAGE, SetupError, find_java_home, has_session
from jobs.launch.failures import expected_error_types, is_caused_by_interrupt, one_line_message

_EPILOG = """\
\b
Examples:
  rmq-lake inspect /data/rocketmq/store
  rmq-lake --master "local[8]" ingest /data/rocketmq/store --lake /data/lake
  rmq-lake query by-key --store /data/rocketmq/store -t orders -k 4711

Options can also be set in the environment (RMQ_LAKE_<COMMAND>_<OPTION>) and in --config FILE. A command
with --show-config prints the value and the source of each option instead of running.

SPARK OPTIONS (--master, --conf K=V, --driver-memory, …) come before the command and are passed unchanged
to spark-submit.

\b
Exit codes: 0 done · 1 failed · 2 usage or configuration error
            3 damage or a gap found · 4 files contradict each other
            5 not found · 6 another run of this store is active
            130 interrupted · 141 the reader of standard output left
"""


_SPARK_OPTIONS = "RMQ_LAKE_SPARK_OPTIONS"
_TRACEBACK = "RMQ_LAKE_TRACEBACK"
_NOT_SET = frozenset(("", "0", "false", "no", "off"))
_NO_THREAD = "can't start new thread"  # an error message of Python
_COMPLETION = "_RMQ_LAKE_COMPLETE"  # the variable by which a shell asks click for completions
_REPEAT_SECONDS = 0.05  # the wait before a dropped interrupt is repeated
_OF_SPARK = {"pyspark", "py4j", "delta"}  # packages: an extra of the wheel, which commands import when they are called


_SYNTAX = (
    *(click.NoSuchOption, click.exceptions.NoSuchCommand, click.MissingParameter, click.BadOptionUsage),
    click.BadArgumentUsage,
)
_OF_MQADMIN = r"mqadmin|[a-z]+[A-Z]\w*"  # none of our commands has a capital letter


class _AsTyped(click.HelpFormatter):
    """Formats help texts, with the name under which this user starts the tool in the examples."""

    def write_text(self, text: str) -> None:
        """Write a text in which no line ends between an exit code and its meaning."""
        super().write_text(re.sub(r"(?<=[:·] )([0-9]+) ", "\\1\N{NO-BREAK SPACE}", text))

    def getvalue(self) -> str:
        """Return the help text, with examples broken into lines that fit the terminal and can be pasted."""
        text = super().getvalue().replace("\N{NO-BREAK SPACE}", " ")
        text = re.sub(rf"(?m)^( *){CONSOLE_SCRIPT} ", lambda found: f"{found[1]}{tool_command()} ", text)
        return "\n".join(piece for line in text.split("\n") for piece in wrap_line(line, line_width_limit(sys.stdout)))


click.Context.formatter_class = _AsTyped


class _CommandGroup(click.Group):
    """The group of all commands; `--help` prints their table without importing their modules."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of their table."""
        del ctx
        return list(COMMAND_TABLE)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the arguments as they were typed, for messages that recommend the next command."""
        ctx.meta[COMMAND_LINE_META_KEY] = tuple(args)
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command; for an unknown name, suggest the most similar one."""
        if cmd_name.startswith("-"):
            return None
        if cmd_name not in COMMAND_TABLE:
            raise click.exceptions.NoSuchCommand(cmd_name, possibilities=COMMAND_TABLE, ctx=ctx)
        command = COMMAND_TABLE[cmd_name].load()
        bind_environment_variables(command, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without loading them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(command.name, command.help) for command in COMMAND_TABLE.values()])


def _print_versions(ctx: click.Context, _parameter: click.Parameter, asked: str | None) -> None:
    if asked is None or ctx.resilient_parsing:
        return
    from importlib import metadata
    from platform import python_version

    click.echo(f"rocketmq-lake {__version__}")
    click.echo(f"python {python_version()}")
    for name in ("pyspark", "delta-spark", "deltalake", "pyarrow", "numba", "numpy"):
        with suppress(metadata.PackageNotFoundError):  # Spark is an extra of the wheel
            click.echo(f"{name} {metadata.version(name)}")
    try:
        click.echo(f"java {find_java_home()}")
    except SetupError:
        click.echo("java not found")
    ctx.exit()


@click.group(
    cls=_CommandGroup,
    epilog=_EPILOG,
    subcommand_metavar="COMMAND [ARGS]…",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.option(
    "--version",
    flag_value="now",
    is_eager=True,
    expose_value=False,
    callback=_print_versions,
    help="Show versions and exit.",
)
@click.option(
    "--traceback", is_flag=True, expose_value=False, envvar=_TRACEBACK, help="Print the Python traceback of an error."
)
@click.option(
    "--log-json",
    is_flag=True,
    expose_value=False,  # `main` reads it: errors are also lines
    help="Write every line on standard error as a JSON object.",
)
@click.pass_context
def rmq_lake(ctx: click.Context) -> None:
    """Load Apache RocketMQ stores into Delta tables and rebuild their queues and index files, without a broker."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False


def main(arguments: Sequence[str]) -> ExitCode:
    """Run one command line and return its exit code; an error is one line on standard error."""
    began = monotonic()
    process.set_resumption_text("")
    is_ours = not has_session()  # otherwise a notebook owns it, and continues to use it
    as_json = _is_given("--log-json", "RMQ_LAKE_LOG_JSON", arguments)
    with log_as_json(_find_command_name(arguments)) if as_json else nullcontext():
        with _handle_termination_as_interrupt():
            try:
                code = _run(arguments)
            except OutputClosedError:
                code = ExitCode.OUTPUT_CLOSED
        if is_ours and has_session():
            sys.modules["jobs.launch.session"].close_cluster_session()
        if as_json:
            log_message("ended", exit_code=int(code), seconds=round(monotonic() - began, 3))
    return code


def _is_given(switch: str, variable: str, arguments: Sequence[str]) -> bool:
    """Return whether a switch is set before the name of the command, or in the environment."""
    before_command = takewhile(lambda word: word.startswith("-"), _own_words(arguments))
    return switch in before_command or os.environ.get(variable, "").lower() not in _NOT_SET


def _find_command_name(arguments: Sequence[str]) -> str | None:
    """Return the name of the command: the first word that is neither a switch nor the value of a Spark option."""
    command = next((word for word in _own_words(arguments) if not word.startswith("-")), None)
    return command if command in COMMAND_TABLE else None


def _own_words(arguments: Sequence[str]) -> Sequence[str]:
    """Return a command line without Spark's options; all of it if they are not valid."""
    try:
        return split_arguments(arguments)[1]
    except click.UsageError:
        return arguments


@contextmanager
def _handle_termination_as_interrupt() -> Iterator[None]:
    """
    End a command on SIGTERM (of a scheduler) and SIGHUP (of a lost terminal) as on Ctrl-C.

    If SIGHUP is ignored (`nohup`), the command ignores it as well.

    Python drops an interrupt that arrives in a finalizer (numba calls finalizers of llvmlite), so it is sent again.
    """
    report = sys.unraisablehook

    def repeat_interrupt(dropped: "sys.UnraisableHookArgs") -> None:
        if isinstance(dropped.exc_value, process.CommandEndedError):
            process.repeat_main_thread_error(dropped.exc_value)
        if issubclass(dropped.exc_type, KeyboardInterrupt | process.CommandEndedError):
            # SIGINT may be ignored, as in a background process.
            threading.Timer(_REPEAT_SECONDS, _interrupt_main_thread).start()
        else:
            report(dropped)

    def end(_signal: int, frame: FrameType | None) -> None:
        error = process.take_main_thread_error()
        interrupt = signal.getsignal(signal.SIGINT)  # Spark's own handler cancels its jobs first
        if callable(interrupt):
            with suppress(KeyboardInterrupt):  # Python's own handler raises it; raised below
                interrupt(signal.SIGINT, frame)
        raise error or KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, end) for number in numbers}
    sys.unraisablehook = repeat_interrupt
    try:
        yield
    finally:
        sys.unraisablehook = report
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt_main_thread() -> None:
    """Send SIGTERM to the main thread if a handler is set; this also ends a write to a pipe that is not read."""
    if callable(signal.getsignal(signal.SIGTERM)):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _run(arguments: Sequence[str]) -> ExitCode:
    try:
        spark_options, own = split_arguments(arguments)
        with _spark_options(spark_options):
            _leave_for_cluster(own)
            code = run_nested(own)
        sys.stdout.flush()
    except click.ClickException as raised:
        error = _improve_usage_error(raised, list(arguments))
        if isinstance(sys.stderr, JsonLines):
            log_message(error.format_message(), "error")
        else:
            log_message(_usage_error_text(error))
        return ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        return _report_interrupt(arguments)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OF_SPARK:
            raise
        return _fail(SetupError(NO_SPARK_MESSAGE), arguments)
    except UnicodeEncodeError:
        from jobs.lake.tables import storable_text  # lazy import: pyarrow is slow to load

        given = (*arguments, *(value for name, value in os.environ.items() if name.startswith("RMQ_LAKE")))
        wrong = next((word for word in given if storable_text(word) != word), None)
        if wrong is None:
            raise
        log_message(f"rmq-lake: this value is not valid UTF-8: {wrong}", "error")
        return ExitCode.USAGE
    except expected_error_types() as error:
        # An interrupted call to the JVM may let the next call fail, while the command ends.
        return _report_interrupt(arguments) if is_caused_by_interrupt(error) else _fail(error, arguments)
    return code


def _usage_error_text(error: click.ClickException) -> str:
    """Return the text of a usage error; for a syntax error, after the usage of the command."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error.format_message()
    text, context = f"rmq-lake: {error.format_message()}", getattr(error, "ctx", None)
    is_about_syntax = isinstance(error, _SYNTAX) or "unexpected extra argument" in error.message
    if context is None or not is_about_syntax:
        return text
    return f"{context.get_usage()}\nTry '{context.command_path} --help' for help.\n\n{text}"


def _improve_usage_error(error: click.ClickException, words: list[str]) -> click.ClickException:
    """Add the correct command to a usage error: if a store was passed in another way, or for a command of mqadmin."""
    context = getattr(error, "ctx", None)
    stores = [one for one in context.command.params if one.name == "store"] if context is not None else []
    text = ""
    if isinstance(error, click.exceptions.NoSuchCommand) and re.fullmatch(_OF_MQADMIN, error.command_name):
        line = shlex.join(words[words.index(error.command_name) :])
        text = f"To run an mqadmin command, use:\n{tool_command()} query mqadmin --store STORE {line}"
    elif context is not None and isinstance(error, click.NoSuchOption) and _explain_old_option(error, context):
        text = _explain_old_option(error, context)
    elif stores and isinstance(error, click.NoSuchOption) and error.option_name == "--store":
        text = "No such option '--store': pass STORE without an option name."
    elif isinstance(error, click.NoSuchOption) and error.option_name in SPARK_OPTIONS_WITH_VALUE:
        text = f"{error.option_name} is a Spark option: pass it before the name of the command."
    elif context is not None and stores and "unexpected extra argument" in error.message:
        is_option = isinstance(stores[0], click.Option)
        takes = f"`{context.command.name}` takes exactly one STORE"
        text = f"{error.message}: {'pass a store as --store STORE, and a lake as --lake LAKE' if is_option else takes}"
    return click.UsageError(text, context) if text else error


def _explain_old_option(error: click.NoSuchOption, context: click.Context) -> str:
    """Return what to use instead of an option that only earlier versions had; empty for other options."""
    parameters = (one for _, command in leaf_commands(context.command, ()) for one in command.params)
    return explain_old_name(error.option_name, {name for one in parameters for name in one.opts}) or ""


def run_nested(arguments: Sequence[str]) -> ExitCode:
    """Run a command line inside another command, in its session; errors are raised."""
    words = list(arguments)
    try:
        outcome = rmq_lake.main(words, prog_name=tool_command(), complete_var=_COMPLETION, standalone_mode=False)
    except RuntimeError as error:
        if is_caused_by_interrupt(error):  # Python 3.11 wraps an interrupt that arrives while a class is created
            raise KeyboardInterrupt from error
        if _NO_THREAD in str(error):  # too little address space, or too many processes of this user
            raise MemoryError(str(error)) from error
        raise
    return ExitCode(outcome or ExitCode.CLEAN)


def _leave_for_cluster(own: Sequence[str]) -> None:
    """Replace this process by the spark-submit that starts the driver on the cluster, if that is requested."""
    command = _find_command_name(own)
    if command is None or not COMMAND_TABLE[command].uses_spark or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    options = given_spark_options()
    if find_option_value("--deploy-mode", options) != "cluster":
        return
    from jobs.launch.spark import submit_to_cluster

    context = parse_command_line(own)
    submit_to_cluster(options, own, s3=context is not None and uses_s3(context))


def parse_command_line(words: Sequence[str]) -> click.Context | None:
    """Parse *words*, and return the context of the command with the places that it names; nothing is run or refused."""
    command = _find_command_name(words)
    group = rmq_lake.make_context(tool_command(), list(words), resilient_parsing=True)
    click_command = rmq_lake.get_command(group, command) if command is not None else None
    if command is None or click_command is None:
        return None
    return click_command.make_context(
        command, list(words[words.index(command) + 1 :]), parent=group, resilient_parsing=True
    )


@contextmanager
def _spark_options(options: Sequence[str]) -> Iterator[None]:
    """Pass *options* to a session that this command starts, and to no later one of this process."""
    before = os.environ.get(_SPARK_OPTIONS)
    if options:
        os.environ[_SPARK_OPTIONS] = shlex.join(options)
    try:
        yield
    finally:
        os.environ.pop(_SPARK_OPTIONS, None)
        if before is not None:
            os.environ[_SPARK_OPTIONS] = before


def _report_interrupt(arguments: Sequence[str]) -> ExitCode:
    process.discard_unwritten_output()
    command = _find_command_name(arguments)
    left = process.get_resumption_text() or (COMMAND_TABLE[command].interrupt_advice if command else "")
    log_message(f"rmq-lake: interrupted. {left}".rstrip(), "error")
    return ExitCode.INTERRUPTED


def _fail(error: BaseException, arguments: Sequence[str]) -> ExitCode:
    if _is_given("--traceback", _TRACEBACK, arguments):
        import traceback

        log_message("".join(traceback.format_exception(error)).rstrip(), "error")
    else:
        log_message(f"rmq-lake: {one_line_message(error)}", "error")
    return ExitCode.FAILED
