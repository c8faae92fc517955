"""Mutants: one change each, the same ones for a seed, tried by the tests that import the changed module."""

import ast
from itertools import islice
from pathlib import Path

from tests.support.mutants import ROOT, Imports, Place, drawn, is_same_in, mutant, places

SOURCE = '''
def small(number: int) -> bool:
    """Say something."""
    return 1 < number + 2 and (
        number << 3 != 4
    )
'''


def tree(folder: Path, source: str = SOURCE) -> Path:
    (folder / "rmq_formats").mkdir(parents=True)
    (folder / "rmq_formats" / "sizes.py").write_text(source)
    return folder


def test_each_place_gives_one_change_and_leaves_the_text_around_it(tmp_path: Path) -> None:
    root = tree(tmp_path)
    made = [mutant(root, place) for place in places(root)]

    assert [(one.before, one.after) for one in made] == [
        ("1 < number + 2 and number << 3 != 4", "1 < number + 2 or number << 3 != 4"),
        ("1 < number + 2", "1 <= number + 2"),
        ("1", "2"),
        ("number + 2", "number - 2"),
        ("2", "3"),
        ("number << 3 != 4", "number << 3 == 4"),
        ("number << 3", "number >> 3"),
        ("3", "4"),
        ("4", "5"),
    ]
    assert made[3].source.decode() == SOURCE.replace("number + 2", "(number - 2)")
    assert all(ast.dump(ast.parse(one.source)) != ast.dump(ast.parse(SOURCE)) for one in made)


def test_functions_that_differ_in_more_than_their_docstring_are_other_ones(tmp_path: Path) -> None:
    root = tree(tmp_path / "one")
    place = Place("rmq_formats/sizes.py", "small", 0)

    assert is_same_in(tree(tmp_path / "two", SOURCE.replace("something", "more")), root, place)
    assert not is_same_in(tree(tmp_path / "three", SOURCE.replace("4", "5")), root, place)
    assert not is_same_in(tree(tmp_path / "four", SOURCE.replace("small", "large")), root, place)
    assert not is_same_in(tmp_path / "none", root, place)


def test_a_seed_draws_the_same_places_of_all_rooms() -> None:
    some = list(islice(drawn(ROOT, 7), 200))

    assert some == list(islice(drawn(ROOT, 7), 200))
    assert len(set(some)) == 200
    assert {place.file.split("/")[0] for place in some} == {"rmq_formats", "jobs"}


def test_the_nearest_tests_of_a_module_come_first() -> None:
    found = Imports(ROOT).tests_of("rmq_formats/indexfile/lookup.py")

    assert "tests/rmq_formats/test_index_lookup.py" in found[:5]
    assert len(found) == len(set(found)) == 5
