"""Sets of real numbers and functions of real variables, for `math`; imported in its worker processes only."""

from collections.abc import Sequence
from typing import Any

import sympy
from sympy.logic.boolalg import Boolean

PRECISION = 60  # decimal digits in which constants are compared
CLOSE = sympy.Float("1e-40", PRECISION)
POINTS = [sympy.Rational(sign * top, bottom) for top, bottom in ((7, 3), (2, 11), (19, 5), (5, 13)) for sign in (1, -1)]


def solution_set(pieces: Sequence[Any]) -> tuple[str, sympy.Set] | None:
    """Name of the unknown ("" when none is named) and union of the pieces, relations or sets of real numbers.

    None when a piece is neither or when the relations are not about one and the same unknown.
    """
    names: set[str] = set()
    union = sympy.S.EmptySet
    for piece in pieces:
        if isinstance(piece, sympy.Equality) and isinstance(piece.rhs, sympy.Set):  # x in A is read as x = A
            names |= {str(symbol) for symbol in piece.lhs.free_symbols}
            piece = piece.rhs
        elif isinstance(piece, Boolean) and len(piece.free_symbols) == 1:
            names |= {str(symbol) for symbol in piece.free_symbols}
            piece = piece.as_set()
        if not isinstance(piece, sympy.Set):
            return None
        union = sympy.Union(union, piece)
    return None if len(names) > 1 else ("".join(names), union)


def same_sets(left: tuple[str, sympy.Set], right: tuple[str, sympy.Set]) -> bool:
    """True for equal sets whose unknowns, where both are named, have one name."""
    if left[0] and right[0] and left[0] != right[0]:
        return False
    return left[1] == right[1] or sympy.SymmetricDifference(left[1], right[1]) == sympy.S.EmptySet


def same_on_the_reals(left: sympy.Expr, right: sympy.Expr) -> bool:
    """Equality of expressions with odd roots as functions of real variables: x^(2/3) is the cube root of x^2.

    Both are worked out to 60 digits at rational points of either sign, where (-8)^(1/3) = -2; where one is not real
    the point says nothing, and half of the points must say something.
    """
    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    if len(symbols) > 3 or not any(map(_has_odd_root, (left, right))):
        return False
    told = 0
    for shift in range(len(POINTS)):
        point = {symbol: POINTS[(shift + 3 * place) % len(POINTS)] for place, symbol in enumerate(symbols)}
        values = [real_roots(side.subs(point)).evalf(PRECISION) for side in (left, right)]
        if not all(value.is_Float or value.is_Rational for value in values):
            continue
        if abs(values[0] - values[1]) > CLOSE * max(abs(value) for value in values):
            return False
        told += 1
    return told >= len(POINTS) // 2


def _is_odd_root(node: sympy.Basic) -> bool:
    return bool(node.is_Pow and node.exp.is_Rational and node.exp.q > 1 and node.exp.q % 2)


def _has_odd_root(side: sympy.Expr) -> bool:
    return any(map(_is_odd_root, sympy.preorder_traversal(side)))


def real_roots(side: sympy.Expr) -> sympy.Expr:
    """Odd roots of negative numbers as real ones: (-a)^(p/q) = (-1)^p a^(p/q)."""
    return side.replace(
        lambda node: _is_odd_root(node) and node.base.is_negative,
        lambda node: (-1) ** node.exp.p * (-node.base) ** node.exp,
    )
