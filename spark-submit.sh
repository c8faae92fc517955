#!/usr/bin/env bash
# The launcher of a checkout: creates .venv from requirements.lock if it is missing or outdated (a development
# environment is updated as one, so a developer keeps its tools), then starts jobs.main,
# which finds Java, prepares Spark if the verb needs it, and runs the verb.
#
#   ./spark-submit.sh [SPARK OPTIONS] VERB …        ./spark-submit.sh --help
#
# If .venv is up to date, this script starts no other process, so that `query` answers in a fraction of a second.
set -euo pipefail

here=${BASH_SOURCE[0]}
while [[ -L $here ]]; do
    target=$(readlink "$here")
    [[ $target == /* ]] && here=$target || here=${here%/*}/$target
done
[[ $here == */* ]] && root=${here%/*} || root=.
[[ $root == /* ]] || root=$PWD/$root

# Do not import pyspark from the user's own Spark, or modules from the working directory.
unset PYTHONPATH PYTHONHOME
export PYTHONSAFEPATH=1
export RMQ_LAKE_PROGRAM=${RMQ_LAKE_PROGRAM:-$0} # printed commands begin with this program name

made_from=$root/.venv/made-from # copies of the lock files from which the environment was created
needed=(requirements.lock)
lock=requirements.lock
if [[ ${1-} == --prepare-dev ]]; then # called by the Makefile
    needed+=(requirements-dev.lock)
    lock=requirements-dev.lock
elif [[ -e $made_from/requirements-dev.lock ]]; then
    lock=requirements-dev.lock
fi

# The shell itself reads $(<file).
is_current() {
    local name
    [[ -x $root/.venv/bin/rmq-lake ]] || return
    for name in "${needed[@]}"; do
        [[ -r $made_from/$name && $(<"$made_from/$name") == "$(<"$root/$name")" ]] || return
    done
}

# Print the first Python for which our dependencies have wheels: RMQ_LAKE_PYTHON, or else on PATH, or else in the usual
# directories.
find_python() {
    local candidate candidates=("${RMQ_LAKE_PYTHON-}")
    if [[ -z ${candidates[0]} ]]; then
        candidates=(python3 python3.1{3,2,1,4} {/opt/homebrew,/usr/local,/usr,"${HOME-}/.local"}/bin/python3.1{3,2,1,4}
            "${HOME-}"/.pyenv/versions/3.1[1234].*/bin/python3)
    fi
    for candidate in "${candidates[@]}"; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    return 1
}

if ! is_current; then
    if ! python=$(find_python); then
        echo "rmq-lake: Python 3.11 to 3.14 is needed and was not found: install it with" \
            "\`sudo apt install python3.11 python3.11-venv\` (Debian, Ubuntu), \`sudo dnf install python3.12\` (Fedora)" \
            "or \`brew install python@3.13\` (macOS), or set RMQ_LAKE_PYTHON." >&2
        exit 1
    fi
    PYTHONPATH=$root "$python" -m jobs.launch.environment "$root" "$lock" || exit
fi

if [[ ${1-} == --prepare-dev ]]; then
    exit
fi
exec "$root/.venv/bin/python" -m jobs.main "$@"
