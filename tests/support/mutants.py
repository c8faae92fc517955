"""Small changes to a module's code, each of which a test should notice: comparisons, sums, numbers, conditions."""

import ast
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


class Mutant(NamedTuple):
    """A module's source with one change."""

    line: int
    before: str
    after: str
    source: str


def mutants(source: str, count: int, seed: int) -> list[Mutant]:
    """Return *count* mutants of a module, chosen by *seed*; fewer where it has not as many places."""
    places = len(list(_changes(ast.parse(source))))
    chosen = random.Random(seed).sample(range(places), min(count, places))
    return [_mutant(source, place) for place in sorted(chosen)]


def _mutant(source: str, place: int) -> Mutant:
    tree = ast.parse(source)
    node, change = list(_changes(tree))[place]
    before = ast.unparse(node)
    change()
    return Mutant(getattr(node, "lineno", 0), before, ast.unparse(node), ast.unparse(tree))


def _changes(tree: ast.Module) -> Iterator[tuple[ast.AST, Callable[[], None]]]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for function in functions:
        for statement in function.body:
            for node in ast.walk(statement):
                change = _change(node)
                if change is not None:
                    yield node, change


def _change(node: ast.AST) -> Callable[[], None] | None:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARED:
        swapped = _COMPARED[type(node.ops[0])]()
        return lambda: node.ops.__setitem__(0, swapped)
    if isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED:
        operator = _COMPUTED[type(node.op)]()
        return lambda: setattr(node, "op", operator)
    if isinstance(node, ast.BoolOp):
        other: ast.boolop = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return lambda: setattr(node, "op", other)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        number = node.value + 1
        return lambda: setattr(node, "value", number)
    return None
