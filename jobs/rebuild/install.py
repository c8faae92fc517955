"""
Installs files in the store of a stopped broker: index files, queues, segments, a checkpoint.

A new set of files is built next to its directory, unchanged files are linked into it, and then both directories are
exchanged atomically; a single file is renamed atomically. After a kill, the store has either the complete old set or
the complete new one. The broker's own lock is held during the installation, so it cannot start. Replaced files stay
next to the store, under their own names.

A store belongs to its broker's user, who may change anything in it at any moment, for example insert a link. So root
acts as that user whenever it accesses the store, and has no more permissions in it than that user.
"""

import ctypes
import errno
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from glob import escape
from pathlib import Path
from uuid import uuid4

from jobs.console.amounts import count_text
from jobs.products.index.file_builder import hash_file
from jobs.rebuild.index import IndexRebuildSummary
from jobs.rebuild.queue_run import QueueRebuildSummary
from jobs.rebuild.queues import BuiltFile
from jobs.storage.local import (
    close_unwritten,
    delete_whole_tree,
    explaining_full_disk,
    flush_directory,
    is_link_without_target,
    naming_file_in_errors,
    real_path,
)
from jobs.storage.locations import is_local, local_path
from jobs.storage.paths import (
    find_status,
    is_directory,
    is_link,
    is_regular_file,
    list_directory,
    path_exists,
    walk_tree,
)
from jobs.store.running_broker import (
    ABORT_FILE,
    UNFINISHED_MARK,
    FileState,
    NotInstalledError,
    acting_as_root,
    list_file_states,
    owner_of,
    run_as_user,
)
from jobs.store.store import SET_ASIDE_MARK
from rmq_formats.errors import FormatError
from rmq_formats.store import (
    CHECKPOINT_SIZE,
    INDEX_DIRECTORY,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    is_loadable_index_name,
    is_rocksdb_name,
)

_CHECKPOINT = "checkpoint"
_PLAIN = "consumequeue"
# Directories in a rebuild's output; everything else belongs below `consumequeue`.
_QUEUE_ROOTS = ("batchconsumequeue", "consumequeue_ext")
_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}
_EXCHANGE = 2
_SPARE = 64 << 20  # bytes that are left free
BeforeStep = Callable[[str], object]  # called before each step
NOTHING_RENAMED: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Installation:
    """The files to install in one directory, completely known before the first step."""

    target_directory: Path  # the store's directory, or the target of this link
    new: Mapping[str, BuiltFile]  # the new files, by path below the directory
    set_aside: tuple[str, ...]  # existing files that are replaced or removed
    directory_stat: (
        os.stat_result
    )  # status of the directory or its parent; new directories get its user, group and mode
    file_mode: int
    aside: Path  # gets the replaced files
    is_exchange: bool = True  # whether the whole directory is exchanged; False: each file is renamed individually
    kept_files: tuple[str, ...] = ()
    # States of the existing files at the time of the plan.
    states: Mapping[str, FileState] = field(default_factory=dict)
    obstacles: tuple[str, ...] = ()  # reasons why this process cannot do it

    @property
    def staging_prefix(self) -> Path:
        """The prefix of the names of staging directories and replaced files: the directory, or a file in it."""
        return self.aside.with_name(self.aside.name.partition(SET_ASIDE_MARK)[0])

    @property
    def changed_paths(self) -> set[str]:
        """Paths of the store's files that are new, replaced or set aside."""
        directory = real_path(self.target_directory)
        return {str(directory / name) for name in (*self.new, *self.set_aside)}

    def list_steps(self, *, is_done: bool = False, renamed: Mapping[str, str] = NOTHING_RENAMED) -> Iterator[str]:
        """
        Yield a line for each new, renamed, replaced or removed file.

        *renamed* are the new files that have the bytes of an old file with another name. The name under which the old
        files are kept is known when *is_done*.
        """
        aside = self.aside.name if is_done else f"{self.staging_prefix.name}{SET_ASIDE_MARK}TIME"
        if not self.is_exchange:
            yield from (
                f"{'replaced' if name in self.set_aside else 'new'}: {self.target_directory.name}/{name}"
                for name in self.new
            )
            return
        owner = f"user {self.directory_stat.st_uid}, group {self.directory_stat.st_gid}"
        yield f"target: {self.target_directory} (new files belong to {owner})"
        name, old = self.target_directory.name, {*self.set_aside}
        same = {one: renamed[one] for one in self.new if one in renamed}
        yield from (f"new: {name}/{one}" for one in sorted(self.new.keys() - same.keys() - old))
        yield from (f"renamed: {name}/{one} is identical to {same[one]}" for one in sorted(same.keys() - old))
        yield from (f"replaced: {name}/{one}" for one in sorted(self.new.keys() & old))
        yield from (f"removed: {name}/{one}" for one in sorted(old - self.new.keys() - {*same.values()}))
        if self.kept_files:
            yield f"kept: {count_text(len(self.kept_files), 'file')}"
        if self.set_aside:
            yield f"set aside: {count_text(len(self.set_aside), 'file')} in {aside}"


def plan_index_installation(
    store: str, rebuilt: IndexRebuildSummary, *, advance_checkpoint: bool = False, refuses_deletion: bool = True
) -> list[Installation]:
    """
    Check all conditions and plan the installation of *rebuilt* files; raise `NotInstalledError` if it must not be done.

    A broker that starts after a crash deletes files that end after the checkpoint's index time: such files are refused
    unless the checkpoint is advanced, or unless they may be deleted, as the broker would have done. A store that was
    closed may crash later: then the checkpoint has to cover every new file that is full and not the newest one. Kept
    files do not count there, because nothing proves their times: they may be damaged, or belong to another store.
    """
    if not is_local(rebuilt.out):
        raise NotInstalledError(f"{rebuilt.out}: files can only be installed from a local directory")
    root, source = Path(local_path(store)), Path(local_path(rebuilt.out))
    new = {one.name: BuiltFile(str(source / one.name), one.size, one.size, one.sha256) for one in rebuilt.files}
    headers = {one.name: one.header for one in rebuilt.files}
    user = owner_of(root)
    with run_as_user(*user):
        index = real_path(root / INDEX_DIRECTORY)
        there = sorted(path.name for path in index.iterdir() if is_regular_file(path)) if is_directory(index) else []
        present = [name for name in there if is_loadable_index_name(name)]
        kept = []
        if rebuilt.lost_only:  # the files must be the same as when they were compared
            compared = {one.name for one in rebuilt.explained_files}
            linked = {name for name in compared if is_link_without_target(index / name)}
            changed = sorted(compared - linked ^ {*present})
            if changed:
                raise NotInstalledError(
                    f"the index directory has changed since the rebuild: {', '.join(changed)}. Rebuild into a new "
                    "directory"
                )
            kept = [name for name in present if name not in rebuilt.replaced]
        stray = sorted(new.keys() & {*kept})
        if stray:
            raise NotInstalledError(
                f"{rebuilt.out}: the rebuild both keeps and replaces these files: {', '.join(stray)}. Rebuild into a "
                "new directory"
            )
        headers |= {one.name: one.broker_file.header for one in rebuilt.explained_files if one.name in kept}
        checkpoint, is_closed = _read_checkpoint(root / _CHECKPOINT), not path_exists(root / ABORT_FILE)
        capacity, newest_name = rebuilt.settings.geometry.value.index_num, max(headers, default="")
        full = {name for name in new if headers[name].index_count >= capacity}
        covered = sorted(full - {newest_name} if is_closed else headers)
        deleted = [name for name in covered if headers[name].end_timestamp > checkpoint.index_timestamp]
        if deleted and refuses_deletion and not is_closed and not advance_checkpoint:
            raise NotInstalledError(
                "the broker was not shut down cleanly, and at its next start it would delete these index files: "
                f"{', '.join(deleted)}. "
                "Pass --advance-checkpoint, or start and stop the broker first"
            )
        plans = [_plan_installation(index, new, present, [*kept, *(name for name in there if name not in present)])]
    if deleted and advance_checkpoint and (not is_closed or checkpoint.index_timestamp):
        newest = max(headers[name].end_timestamp for name in covered)
        made = source / _CHECKPOINT
        made.write_bytes(encode_checkpoint(checkpoint._replace(index_timestamp=newest)))
        with run_as_user(*user):
            plans.append(plan_file_installation(root, {_CHECKPOINT: made}, root / _CHECKPOINT))
    return plans


def _new_file(path: Path) -> BuiltFile:
    size = path.stat().st_size
    return BuiltFile(str(path), size, size, None)


def plan_queue_installation(
    store: str, rebuilt: QueueRebuildSummary | None, changed_files: Mapping[str, Path] | None = None
) -> list[Installation]:
    """
    Plan the installations, one per directory; raise `NotInstalledError` if a condition for them is not met.

    *rebuilt* are the queues of a rebuild, if there was one; *changed_files* are single queue files by path below the
    store.
    """
    root = Path(local_path(store))
    new: dict[str, dict[str, BuiltFile]] = {}
    removed, keeps_others = set[str](), True
    if rebuilt is not None:
        removed, keeps_others = {*rebuilt.removed}, rebuilt.lost_only  # plain queue files
        for file in (file for queue in rebuilt.written_queues for file in queue.files):
            root_name, _, path = file.path.partition("/")
            root_name, path = (root_name, path) if root_name in _QUEUE_ROOTS else (_PLAIN, file.path)
            new.setdefault(root_name, {})[path] = file._replace(path=f"{rebuilt.out}/{file.path}")
    if removed:
        new.setdefault(_PLAIN, {})
    for name, source in (changed_files or {}).items():
        root_name, _, path = name.partition("/")
        new.setdefault(root_name, {}).setdefault(path, _new_file(source))
    plans = []
    with run_as_user(*owner_of(root, _PLAIN)):
        for name, files in sorted(new.items()):
            directory = real_path(root / name)
            present = sorted(str(path.relative_to(directory)) for path in walk_tree(directory) if is_regular_file(path))
            gone = removed if name == _PLAIN else set[str]()
            # With double write, a broker that finds no database rebuilds it from the newest segments only.
            is_double = any("/" in path for path in present)
            kept = [path for path in present if keeps_others or (is_double and is_rocksdb_name(path))]
            kept = [path for path in kept if path not in {*files, *gone}]
            plans.append(_plan_installation(directory, files, present, kept))
    return plans


def _plan_installation(
    directory: Path, new: Mapping[str, BuiltFile], present: Sequence[str], kept: Sequence[str]
) -> Installation:
    status = (directory if is_directory(directory) else directory.parent).stat()
    in_the_way = [
        directory / name for name in sorted({str(one) for name in new for one in Path(name).parents} & {*kept})
    ]
    if path_exists(directory) and not is_directory(directory):
        in_the_way = [directory]
    return Installation(
        directory,
        new,
        tuple(sorted({*present} - {*kept})),
        status,
        _mode_of(status, [directory / name for name in present]),
        _new_aside_name(directory),
        kept_files=tuple(kept),
        states={}
        if in_the_way
        else {str(path.relative_to(directory)): state for path, state in list_file_states(directory)},
        obstacles=(
            *_find_obstacles(directory.parent, status.st_uid, new),
            *(f"{path} is a file, but must be a directory; move it out of the store" for path in in_the_way),
            *_describe_links_without_target([directory] if is_link(directory) else walk_tree(directory)),
        ),
    )


def plan_file_installation(directory: Path, files: Mapping[str, Path], staging_prefix: Path) -> Installation:
    """
    Return the installation of single files; staging and replaced files are named after *staging_prefix*.

    A directory that does not exist is created with the files.
    """
    if not path_exists(directory):
        return _plan_installation(directory, {name: _new_file(path) for name, path in files.items()}, (), ())
    there = [directory / name for name in files if is_regular_file(directory / name)]
    new, status = {name: _new_file(path) for name, path in files.items()}, directory.stat()
    return Installation(
        directory,
        new,
        tuple(path.name for path in there),
        status,
        _mode_of(status, there or sorted(path for path in directory.iterdir() if is_regular_file(path))),
        _new_aside_name(staging_prefix),
        is_exchange=False,
        states={path.name: state for path in there if (state := FileState.read(path)) is not None},
        obstacles=(
            *_find_obstacles(directory, status.st_uid, new),
            *_describe_links_without_target(directory / name for name in files),
        ),
    )


def _mode_of(directory: os.stat_result, files: Sequence[Path]) -> int:
    """Return the mode of new files: that of an existing file, else the mode that the directory allows."""
    return files[-1].stat().st_mode & 0o777 if files else directory.st_mode & 0o666


def _find_obstacles(directory: Path, user: int, new: Mapping[str, BuiltFile]) -> Iterator[str]:
    """Yield the reasons why this process cannot put files into *directory*."""
    if os.geteuid() not in {0, user}:
        yield f"{directory}: files must belong to user {user}; run as that user, or as root"
    needed, free = sum(file.size for file in new.values()), shutil.disk_usage(directory).free
    if needed + _SPARE > free:
        yield (
            f"{directory}: {needed:,} bytes are needed, {free:,} are free, and {_SPARE:,} must stay free for the broker"
        )


def _describe_links_without_target(paths: Iterable[Path]) -> Iterator[str]:
    """Describe the dangling links: an installation could not keep them, and an undo could not restore them."""
    for path in paths:
        if is_link_without_target(path):
            yield f"{path}: a dangling symbolic link; move it out of the store"


def _new_aside_name(directory: Path) -> Path:
    """Return a new name next to a directory for its replaced files."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return directory.with_name(f"{directory.name}{SET_ASIDE_MARK}{stamp}-{uuid4().hex[:8]}")


def _read_checkpoint(path: Path) -> Checkpoint:
    try:
        with naming_file_in_errors(str(path)), path.open("rb") as file:
            return decode_checkpoint(file.read(CHECKPOINT_SIZE))
    except (FileNotFoundError, FormatError):  # the broker then starts as if it had flushed nothing
        return Checkpoint(0, 0, 0)


def install(plan: Installation, step: BeforeStep = lambda name: name) -> None:
    """
    Install the planned files; *step* is called before each step, and each leaves a complete set of files.

    Raises `NotInstalledError`, and leaves all files unchanged, if the plan cannot be carried out, or if a file that it
    replaces or keeps has changed since.
    """
    if plan.obstacles:
        raise NotInstalledError("; ".join(plan.obstacles))
    staging_prefix = plan.staging_prefix
    with run_as_user(plan.directory_stat.st_uid, plan.directory_stat.st_gid):
        delete_killed_attempts(staging_prefix)
        staging = staging_prefix.with_name(f"{staging_prefix.name}{UNFINISHED_MARK}{uuid4()}")
        step("make the directory")
        staging.mkdir(mode=0o700)
        made = os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            for name, file in plan.new.items():
                step(f"copy {name}")
                _copy(file, _make_parents(staging, name, plan), plan)
            if plan.is_exchange:
                _exchange_for(plan, staging, made, step)
            else:
                if plan.set_aside:
                    plan.aside.mkdir(mode=0o700, exist_ok=True)
                for name in plan.new:
                    step(f"put {name}")
                    _put_file(staging / name, plan.target_directory / name, plan.aside / name, plan.states.get(name))
                    flush_directory(plan.target_directory)
                staging.rmdir()
        except Exception:
            shutil.rmtree(staging, ignore_errors=True)  # the error that is raised explains both
            raise
        finally:
            close_unwritten(made)
        flush_directory(staging_prefix.parent)


def delete_killed_attempts(staging_prefix: Path) -> None:
    """Delete the staging directories of installations that were killed."""
    for leftover in list_directory(staging_prefix.parent, f"{escape(staging_prefix.name)}{UNFINISHED_MARK}*"):
        delete_whole_tree(leftover)


def _put_file(made: Path, path: Path, aside: Path, expected: FileState | None) -> None:
    """
    Rename a file into place, and keep the replaced file under *aside*; `NotInstalledError` if that is not *expected*.

    Until both files are exchanged, *aside* is the new one.
    """
    if expected is None:
        try:
            os.link(made, path, follow_symlinks=False)
        except FileExistsError as error:
            raise _changed_error(path) from error
        made.unlink()
        return
    made.rename(aside)
    flush_directory(aside.parent)
    swap_paths(aside, path)
    found = FileState.read(aside)
    if found is None:  # deleted meanwhile
        path.unlink()
        raise _changed_error(path)
    if found != expected:
        swap_paths(aside, path)
        aside.unlink()
        raise _changed_error(path)


def _changed_error(path: Path) -> NotInstalledError:
    return NotInstalledError(
        f"{path}: another process changed this file while this command ran; it was left unchanged. Find out which "
        "process writes to the store, stop it, and run this command again"
    )


def _exchange_for(plan: Installation, staging: Path, made: int, step: BeforeStep) -> None:
    """Complete the new set in an open directory, and exchange it with the old one."""
    for name in plan.kept_files:
        step(f"keep {name}")
        try:
            os.link(plan.target_directory / name, _make_parents(staging, name, plan), follow_symlinks=False)
        except FileNotFoundError as error:
            delete_whole_tree(staging)
            raise _changed_error(plan.target_directory / name) from error
    for directory in [path for path in walk_tree(staging) if is_directory(path)]:
        flush_directory(directory)
    with naming_file_in_errors(str(staging)):
        _set_owner_and_mode(made, plan, plan.directory_stat.st_mode & 0o7777)
        os.fsync(made)
    step("name the directory")
    staging.rename(plan.aside)  # no longer deleted as a killed attempt: after the exchange it holds the old set
    step("exchange")
    _check_same_directory(made, plan.aside)
    swap_paths(plan.aside, plan.target_directory)
    _check_same_directory(made, plan.target_directory)
    flush_directory(plan.target_directory.parent)
    step("tidy up")
    there = {str(path.relative_to(plan.aside)): state for path, state in list_file_states(plan.aside)}
    changed = [name for name in there.keys() | plan.states.keys() if there.get(name) != plan.states.get(name)]
    if changed:  # a file was changed before the exchange: restore the old set
        if path_exists(plan.aside):
            swap_paths(plan.aside, plan.target_directory)
            delete_whole_tree(plan.aside)
        else:
            delete_whole_tree(plan.target_directory)
        raise _changed_error(plan.target_directory / min(changed))
    if path_exists(plan.aside):
        for name in plan.kept_files:  # kept files are linked into the new set
            (plan.aside / name).unlink()
        remove_empty_directories(plan.aside)


def _check_same_directory(made: int, path: Path) -> None:
    """Raise an error if *path* is not the directory that was created."""
    found, expected = path.lstat(), os.fstat(made)
    if (found.st_dev, found.st_ino) != (expected.st_dev, expected.st_ino):
        raise OSError(
            f"{path}: another process has replaced this directory. Find out which process writes to the store, stop "
            "it, and run this command again"
        )


def remove_empty_directories(directory: Path) -> None:
    """Delete *directory* and its subdirectories if they are empty."""
    if not is_directory(directory):
        return
    inner = sorted((path for path in walk_tree(directory) if is_directory(path)), reverse=True)
    for path in [*inner, directory]:
        with suppress_not_empty():
            path.rmdir()


@contextmanager
def suppress_not_empty() -> Iterator[None]:
    """Ignore the error that a directory is not empty, even if a file was added a moment ago."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise


def _make_parents(staging: Path, path: str, plan: Installation) -> Path:
    target = staging / path
    for directory in reversed([parent for parent in target.parents if parent.is_relative_to(staging)][:-1]):
        if not path_exists(directory):
            directory.mkdir()
            os.chown(directory, -1, plan.directory_stat.st_gid)
            directory.chmod(plan.directory_stat.st_mode & 0o7777)
    return target


def _copy(file: BuiltFile, target: Path, plan: Installation) -> None:
    source = Path(file.path)
    with acting_as_root():
        stored = source.open("rb")
    with stored, explaining_full_disk(str(target), file.size), target.open("x+b") as copy:
        descriptor = copy.fileno()
        shutil.copyfileobj(stored, copy, 1 << 20)
        copy.flush()
        if file.sha256 is not None:
            found = hash_file(lambda at, length: os.pread(descriptor, min(length, file.written - at), at))
            rest = os.pread(descriptor, file.size - file.written + 1, file.written)
            if found != file.sha256 or rest != bytes(file.size - file.written):
                raise OSError(f"{file.path}: size or SHA-256 differs from the manifest")
        _set_owner_and_mode(descriptor, plan, plan.file_mode)
        os.fsync(descriptor)


def _set_owner_and_mode(descriptor: int, plan: Installation, mode: int) -> None:
    """Set the group and mode of an open file; its user is the user as whom this process acts."""
    if os.fstat(descriptor).st_gid != plan.directory_stat.st_gid:
        os.fchown(descriptor, -1, plan.directory_stat.st_gid)
    os.fchmod(descriptor, mode)


def swap_paths(new: Path, old: Path) -> None:
    """Exchange two files or directories: atomically if the system supports it, otherwise one after the other."""
    # Without the system call a kill between two renames leaves nothing at *old*, and a broker would create a new one.
    # Nothing is lost: the old one is at *new*, and the new one next to it, under the name that ends in `-new`.
    if find_status(old, follows_links=False) is None:
        new.rename(old)
        return
    number = _RENAMEAT2.get(platform.machine()) if sys.platform.startswith("linux") else None
    if number is not None:
        renameat2 = ctypes.CDLL(None, use_errno=True).syscall
        here = -100  # paths are whole
        if renameat2(number, here, os.fsencode(new), here, os.fsencode(old), _EXCHANGE) == 0:
            return
        if ctypes.get_errno() not in {errno.EINVAL, errno.ENOSYS}:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(old))
    between = new.with_name(f"{new.name}-new")
    for source, target in ((new, between), (old, new), (between, old)):
        source.rename(target)
