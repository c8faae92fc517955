"""The face of the library: its names are there, and its example says what they answer."""

import doctest
import importlib
import sys
from pathlib import Path
from subprocess import run

import pytest

import rmq_formats

ROOT = Path(rmq_formats.__file__).parents[1]


@pytest.mark.parametrize("name", rmq_formats.__all__)
def test_every_public_name_is_that_of_the_module_that_declares_it(name: str) -> None:
    value = getattr(rmq_formats, name)

    assert getattr(importlib.import_module(value.__module__), name) is value


def test_the_names_are_in_order_and_complete() -> None:
    own = {
        name for name, value in vars(rmq_formats).items() if getattr(value, "__module__", "").startswith("rmq_formats.")
    }

    assert sorted(rmq_formats.__all__) == rmq_formats.__all__
    assert own <= {*rmq_formats.__all__}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'unknown'"):
        rmq_formats.unknown  # noqa: B018 - the look-up is what is tested


def test_the_example_is_true() -> None:
    outcome = doctest.testmod(rmq_formats)

    assert outcome.attempted > 5
    assert outcome.failed == 0


def test_the_scalar_names_need_the_standard_library_alone() -> None:
    heavy = ("numba", "numpy", "pyarrow", "pyspark", "llvmlite")
    names = [name for name in rmq_formats.__all__ if name not in {"message_batch", "scan"}]
    program = f"import sys; sys.modules.update(dict.fromkeys({heavy})); from rmq_formats import {', '.join(names)}"

    answer = run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)

    assert answer.stderr == ""
