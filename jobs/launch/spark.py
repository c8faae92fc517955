"""
The arguments and environment of spark-submit, and the files that it needs from the cache.

The driver is this Python process: pyspark starts spark-submit, which starts the JVM. So standard output is ours alone
(spark-submit merges the two streams of a driver that it starts), a usage error does not start a JVM, and Ctrl-C works.
"""

import hashlib
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from jobs.launch.arguments import effective_spark_settings, find_option_value, split_secrets
from jobs.launch.cache import CONF_DIRECTORY, build_code_archive, cache_directory
from jobs.launch.class_archive import find_class_archive_flags
from jobs.launch.engine import NO_SPARK_MESSAGE, SetupError, count_cores, find_java_home
from jobs.storage.paths import list_directory, path_exists

_DAEMON_MODULE = "jobs.store.spark_daemon"
_MASTER_SECONDS = 5  # time limit of a connection, because a firewall may drop packets
_NAMED_JARS = 3  # JARs that a message names

# Four attempts a task: plain local[*] gives one, and a Python worker that is killed would end the run.
DEFAULT_MASTER = "local[*,4]"

# The JVM only schedules Python's work, for a few seconds: use one garbage collector thread, and the fast compiler.
_ONE_COLLECTOR, _COMPILED_FAST = "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"
# Use little memory: a heap that grows (by default the JVM begins with a 64th of the machine's memory, and new objects
# fill a third of that once), and the JDK's class archive at its preferred address: at any other address, every page
# that contains an address must be copied.
_SMALL = ("-Xms64m", "-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0")
_QUIET = f"-Dlog4j2.configurationFile={(CONF_DIRECTORY / 'log4j2.properties').as_uri()}"
# With these of the user, an archive of classes may not fit the JVM, or be impossible to write.
_JVM_VARIABLES = (
    *("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"),  # flags
    *("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH", "SPARK_PREPEND_CLASSES"),  # classes
)
_JVM_OPTIONS = ("--driver-java-options", "--driver-class-path")
_JVM_SETTINGS = ("spark.driver.extraJavaOptions", "spark.driver.extraClassPath", "spark.driver.defaultJavaOptions")
_MEMORY = "spark.driver.memory"
# Settings that every run needs, with any properties file of the user.
_DELTA = (
    "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog",
)


def prepare_submission(spark_options: Sequence[str], *, s3: bool = False) -> tuple[list[str], dict[str, str]]:
    """
    Fetch missing JARs, and return spark-submit's arguments (our options, overridden by the user's) and environment.

    *s3*: the run reads or writes a location on S3.
    """
    java_home = find_java_home()
    sections = ("delta", "s3") if s3 else ("delta",)
    own_jars = [str(path) for section in sections for path in fetch_jars(section, java_home)]
    environment = {
        "JAVA_HOME": str(java_home),
        "PYTHONSAFEPATH": "1",  # a worker does not import from the directory that it was started in
        "SPARK_HOME": str(spark_home()),
        # Options of the small JVM that only assembles the command line.
        "SPARK_LAUNCHER_OPTS": f"{_ONE_COLLECTOR} {_COMPILED_FAST}",
    }
    local = is_local_master(spark_options)
    defaults = [] if _find_master(spark_options) is not None else ["--master", DEFAULT_MASTER]
    if find_option_value("--properties-file", spark_options) is None:
        defaults += ["--properties-file", str(CONF_DIRECTORY / "spark-defaults.conf")]
    else:
        defaults += [word for setting in _DELTA for word in ("--conf", setting)]
    options = [*defaults, *spark_options]
    if local and sys.platform == "linux":  # elsewhere libraries of the system may not be used after a fork
        options = ["--conf", f"spark.python.daemon.module={_DAEMON_MODULE}", *options]
    options = _add_files(options, "--jars", own_jars)
    given = os.environ.get("SPARK_SUBMIT_OPTS", "")
    if local:
        # The JVM logs on standard output, which is reserved for data.
        flags = [_QUIET, "-Xlog:disable", "-Xshare:auto", _ONE_COLLECTOR, *_SMALL, _COMPILED_FAST]
        if not _changes_jvm(options):
            memory = find_option_value("--driver-memory", options) or effective_spark_settings(options).get(_MEMORY, "")
            archives = cache_directory() / "spark-classes"
            flags += find_class_archive_flags(archives, java_home, spark_home(), [*flags, memory])
        environment["SPARK_SUBMIT_OPTS"] = _append_jvm_flags(flags, given)
        # Otherwise each of a JVM's many threads keeps memory of large columns that it has freed. YARN also sets this.
        environment["MALLOC_ARENA_MAX"] = os.environ.get("MALLOC_ARENA_MAX", "2")
        environment["PYSPARK_PYTHON"] = sys.executable
        environment["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")  # listen on loopback only
    else:
        environment["SPARK_SUBMIT_OPTS"] = _append_jvm_flags([_QUIET], given)
        options = _add_files(options, "--py-files", [str(build_code_archive())])
        # Executors call the driver at the address that Spark finds or the user names. If the whole cluster runs on this
        # machine, the driver listens on loopback only.
        host = urlsplit((_find_master(spark_options) or "").partition(",")[0]).hostname or ""
        if host == "localhost" or host.startswith("127."):
            environment["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
        # spark-submit does this for drivers that it starts itself; ours would have workers start any `python3`.
        python = effective_spark_settings(spark_options).get("spark.pyspark.python")
        if python is not None:
            environment["PYSPARK_PYTHON"] = python
    return options, environment


def submit_to_cluster(spark_options: Sequence[str], arguments: Sequence[str], *, s3: bool) -> NoReturn:
    """Replace this process by the spark-submit that starts the driver on the cluster."""
    require_reachable_master(spark_options)
    options, environment = prepare_submission(spark_options, s3=s3)
    options = _move_secrets_to_file(options)
    program = str(Path(environment["SPARK_HOME"]) / "bin" / "spark-submit")
    main = str(Path(__file__).parent.parent / "main.py")
    os.environ.update(environment)
    os.execv(program, [program, *options, main, *arguments])  # noqa: S606  the purpose of this function


def _move_secrets_to_file(options: list[str]) -> list[str]:
    """
    Return *options* with their secrets in the properties file: every user of the machine can see arguments.

    The file is in memory, and open until spark-submit has ended.
    """
    public, secret = split_secrets(options)
    if not secret:
        return options
    if sys.platform != "linux":
        names = ", ".join(sorted(secret))
        raise SetupError(f"{names} would be an argument of spark-submit. Put secrets into a file for --properties-file")
    properties = find_option_value("--properties-file", public)
    given = Path(properties).read_bytes() if properties is not None else b""
    lines = "".join(f"{name}={_escape_property(value)}\n" for name, value in secret.items())
    file = os.memfd_create("spark.conf", 0)  # inherited by spark-submit
    os.write(file, given + f"\n{lines}".encode())
    path = f"/proc/self/fd/{file}"
    if properties is None:
        return [*public, "--properties-file", path]
    return [path if before == "--properties-file" else word for before, word in pairwise(["", *public])]


def _escape_property(value: str) -> str:
    """Return a value as Java's Properties read it."""
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\{escaped}" if escaped.startswith((" ", "\t")) else escaped


def use_half_the_cores(spark_options: Sequence[str]) -> Sequence[str]:
    """Return *spark_options* with a local master of half the cores, unless they contain a master."""
    if _find_master(spark_options) is not None:
        return spark_options
    return [*spark_options, "--master", f"local[{max(count_cores() // 2, 1)},4]"]


def is_local_master(spark_options: Sequence[str]) -> bool:
    """Return whether Spark runs only in the driver's process."""
    return (_find_master(spark_options) or DEFAULT_MASTER).startswith("local")


def require_reachable_master(spark_options: Sequence[str]) -> None:
    """Refuse a standalone master that does not respond: Spark would retry for a minute, then print a stack trace."""
    master = _find_master(spark_options) or ""
    if not master.startswith("spark://"):
        return
    reasons = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), _MASTER_SECONDS):
                return
        except ValueError:
            reasons.append(f"{address}: expected HOST:PORT")
        except OSError as error:  # no answer: reported with those of the other masters
            reasons.append(f"{address}: {error.strerror or error}")
    raise SetupError(f"no Spark master answers at {master} ({'; '.join(reasons)})")


def _find_master(spark_options: Sequence[str]) -> str | None:
    return find_option_value("--master", spark_options) or effective_spark_settings(spark_options).get("spark.master")


def _add_files(options: Sequence[str], name: str, files: Sequence[str]) -> list[str]:
    given = find_option_value(name, options)
    return [*options, name, ",".join([*files, given] if given else files)]


def _changes_jvm(options: Sequence[str]) -> bool:
    """Return whether the user changes the flags or the class path of a local JVM; its memory does not count."""
    settings = effective_spark_settings(options)
    return (
        any(os.environ.get(name) for name in _JVM_VARIABLES)
        or any(option in options for option in _JVM_OPTIONS)
        or any(setting in settings for setting in _JVM_SETTINGS)
        or path_exists(spark_home() / "conf")
    )


def _append_jvm_flags(flags: Sequence[str], given: str) -> str:
    """Append the user's JVM flags to ours, so that they override them; two garbage collectors would be an error."""
    own = [flag for flag in flags if not (flag.startswith("-XX:+Use") and flag.endswith("GC") and "GC" in given)]
    quoted = (re.sub(r'(["\\])', r"\\\1", flag) for flag in own)  # a path can have any character
    return " ".join([*(f'"{flag}"' for flag in quoted), given]).strip()


def jar_file_name(coordinates: str) -> str:
    """Return the name of a JAR in the cache, from its organisation, name and version: `ORGANISATION:NAME:VERSION`."""
    organisation, name, version = coordinates.split(":")
    return f"{organisation}_{name}-{version}.jar"


def spark_home() -> Path:
    """Return the directory of the installed pyspark package."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise SetupError(NO_SPARK_MESSAGE)
    return Path(found.origin).parent


def locked_jars(section: str) -> dict[str, str]:
    """Return the SHA-256 of each JAR in one section of conf/jars.lock, by the coordinates of the JAR."""
    jars: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in (CONF_DIRECTORY / "jars.lock").read_text().splitlines():
        text = line.strip()
        if text.startswith("["):
            current = jars.setdefault(text.strip("[]"), {})
        elif text and not text.startswith("#"):
            coordinates, sha256 = text.split()
            current[coordinates] = sha256
    return jars[section]


def fetch_jars(section: str, java_home: Path) -> tuple[Path, ...]:
    """Return the cached paths of a section's JARs; fetch and check missing ones first."""
    directory = cache_directory() / "jars"
    jars = locked_jars(section)
    missing = [jar for jar in jars if not path_exists(directory / jar_file_name(jar))]
    if missing:
        clear = "\r\x1b[K" if sys.stderr.isatty() else ""  # of the progress line
        print(f"{clear}rmq-lake: fetching {len(missing)} JARs (first run only) …", file=sys.stderr, flush=True)  # noqa: T201  no click here
        directory.mkdir(parents=True, exist_ok=True)
        # A killed process leaves a directory that is never read; two concurrent ones put the same files in place.
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=directory) as scratch:
            _run_ivy(missing, Path(scratch), java_home)
            for jar in missing:
                path = Path(scratch) / jar_file_name(jar)
                if not path_exists(path):
                    raise SetupError(f"the repository does not have {jar}")
                sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
                if sha256 != jars[jar]:
                    raise SetupError(f"{path.name} has SHA-256 {sha256}, but conf/jars.lock expects {jars[jar]}")
                path.replace(directory / path.name)
    return tuple(directory / jar_file_name(jar) for jar in jars)


def _run_ivy(jars: Sequence[str], scratch: Path, java_home: Path) -> None:
    """Fetch JARs with the Ivy in Spark, and our settings; see conf/ivysettings.xml."""
    module = scratch / "ivy.xml"
    dependencies = "".join(
        f'<dependency org="{organisation}" name="{name}" rev="{version}" transitive="false"/>'
        for organisation, name, version in (jar.split(":") for jar in jars)
    )
    module.write_text(
        '<ivy-module version="2.0"><info organisation="rocketmq-lake" module="jars"/>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
    settings = os.environ.get("RMQ_LAKE_IVY_SETTINGS", str(CONF_DIRECTORY / "ivysettings.xml"))
    (ivy,) = list_directory(spark_home() / "jars", "ivy-*.jar")
    command = [str(java_home / "bin" / "java"), "-jar", str(ivy), "-settings", settings, "-ivy", str(module)]
    command += ["-cache", str(scratch / "ivy"), "-types", "jar", "-warn"]
    command += ["-retrieve", f"{scratch}/[organisation]_[artifact]-[revision].[ext]"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  our own command
    if not answer.returncode:
        return
    first = next((line.strip() for line in answer.stdout.splitlines() if "rror" in line or "::" in line), "no answer")
    wanted = [f"{jar} as {jar_file_name(jar)}" for jar in jars[:_NAMED_JARS]]
    others = f" and {len(jars) - _NAMED_JARS} more of {CONF_DIRECTORY / 'jars.lock'}" if len(jars) > _NAMED_JARS else ""
    raise SetupError(
        f"JARs could not be fetched ({first}). The first run needs Maven Central. Without it, set "
        f"RMQ_LAKE_IVY_SETTINGS to a copy of {CONF_DIRECTORY / 'ivysettings.xml'} that names your mirror, or copy "
        f"the directory {cache_directory() / 'jars'} from a machine that has it, or put these files into that "
        f"directory: {', '.join(wanted)}{others}"
    )
