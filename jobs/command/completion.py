"""Shell completion, installed where the user's shell looks for it: for `rmq-lake`, in bash for the launcher, too."""

import os
import pwd
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import click

from jobs.console.program import CONSOLE_SCRIPT

VARIABLE = "_RMQ_LAKE_COMPLETE"  # shells know the completion by one name, however the command is typed
_LAUNCHER = "spark-submit.sh"
_OF_LAUNCHER = """
_rmq_lake_launcher() {
    # Others have a spark-submit.sh, too: TAB starts ours alone.
    local typed=${1/#\\~/$HOME}
    [[ -r ${typed%/*}/jobs/launch/environment.py ]] && _rmq_lake_completion "$typed" "${@:2}"
}

complete -o nosort -F _rmq_lake_launcher spark-submit.sh
"""


class Installed(NamedTuple):
    """Files that were written, and what the user still has to do."""

    files: tuple[Path, ...]
    left: str


def install(command: click.Command) -> Installed:
    """Write the completion for the shell that SHELL names, else for the one that the user logs in with."""
    from click.shell_completion import get_completion_class  # who installs nothing does not wait for it

    named = os.environ.get("SHELL") or _login_shell()
    shell = Path(named).name
    found = get_completion_class(shell)
    if found is None:
        reason = f"your shell is {named!r}" if named else "SHELL is not set"
        raise click.UsageError(f"{reason}: there is completion for bash, zsh and fish (SHELL=bash, then this again)")
    source = found(command, {}, CONSOLE_SCRIPT, VARIABLE).source()
    home = Path.home()
    left = "Shells that are started from now on have it."
    if shell == "bash":
        data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "bash-completion"
        folder = Path(os.environ.get("BASH_COMPLETION_USER_DIR") or data) / "completions"
        names: tuple[str, ...] = (CONSOLE_SCRIPT, _LAUNCHER)
        source += _OF_LAUNCHER
        left += " They need the package bash-completion."
    elif shell == "zsh":
        folder = Path(os.environ.get("ZDOTDIR") or home) / ".zfunc"
        names = (f"_{CONSOLE_SCRIPT}",)
        left = f"In .zshrc there must be, once: fpath+={folder}; autoload -Uz compinit; compinit"
    else:
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "fish" / "completions"
        names = (f"{CONSOLE_SCRIPT}.fish",)
    folder.mkdir(parents=True, exist_ok=True)
    files = tuple(folder / name for name in names)
    for path in files:
        path.write_text(source, encoding="utf-8")
    return Installed(files, left)


def _login_shell() -> str:
    """Schedulers and containers often start commands without SHELL."""
    with suppress(KeyError):  # a container may run as a user that has no entry
        return pwd.getpwuid(os.getuid()).pw_shell
    return ""
