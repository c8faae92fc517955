"""A full disk is named: which file, how much was to come, how much is free."""

import errno
from pathlib import Path

import pytest

from jobs.launch.failures import one_line
from jobs.storage.space import room_for


def test_a_full_disk_names_the_file_what_it_needs_and_what_is_free(tmp_path: Path) -> None:
    place = tmp_path / "lake" / "part.parquet"
    with pytest.raises(OSError, match="No space left") as caught, room_for(str(tmp_path)), room_for(str(place), 4096):
        raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device")
    line = one_line(caught.value)

    assert line.startswith(f"{place}: No space left on device: 4096 bytes are to be written, ")
    assert line.endswith(f"bytes are free on the file system of {tmp_path}")


def test_a_full_disk_in_the_words_of_a_library_is_named(tmp_path: Path) -> None:
    words = "Generic LocalFileSystem error\n  Unable to copy data to file\n  No space left on device (os error 28)"
    with pytest.raises(OSError, match="No space left") as caught, room_for(str(tmp_path)):
        raise ValueError(words)

    assert one_line(caught.value).startswith(f"{tmp_path}: No space left on device: ")


def test_another_error_is_raised_as_it_is(tmp_path: Path) -> None:
    error = OSError(errno.EIO, "Input/output error", "file")
    with pytest.raises(OSError, match="Input/output") as caught, room_for(str(tmp_path)):
        raise error
    assert caught.value is error


def test_an_error_of_a_read_or_a_write_names_its_file(tmp_path: Path) -> None:
    """Neither read nor write says which file it was: `[Errno 110] Connection timed out` helps nobody."""
    with pytest.raises(TimeoutError) as caught, room_for(str(tmp_path)):
        raise OSError(errno.ETIMEDOUT, "Connection timed out")

    assert one_line(caught.value) == f"{tmp_path}: Connection timed out"


def test_an_error_of_a_server_names_no_file(tmp_path: Path) -> None:
    """A JVM that has died is known by the error of its connection."""
    error = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    with pytest.raises(ConnectionRefusedError) as caught, room_for(str(tmp_path)):
        raise error
    assert caught.value is error


def test_an_error_of_a_library_in_rust_names_the_place(tmp_path: Path) -> None:
    """`deltalake` says: Unable to copy data to file: Connection timed out (os error 110)."""
    words = "Generic LocalFileSystem error: Unable to copy data to file: Connection timed out (os error 110)"
    with pytest.raises(ValueError, match="Connection timed out") as caught, room_for(str(tmp_path)):
        raise ValueError(words)

    assert str(caught.value) == f"{tmp_path}: {words}"
