"""Index arithmetic as polynomials: enough to see that `(m + 1) * T` is `m * T + T`, whatever m and T are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import libcst as cst

from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.syntax import loaded_names, text_of

Monomial = tuple[str, ...]
"""Sorted factors; an expression that is no sum or product is a factor by its text."""


@dataclass(frozen=True)
class Polynomial:
    """Integer coefficients by monomial; zero coefficients are left out."""

    terms: Mapping[Monomial, int]

    def __add__(self, other: Polynomial) -> Polynomial:
        terms = dict(self.terms)
        for monomial, factor in other.terms.items():
            terms[monomial] = terms.get(monomial, 0) + factor
        return Polynomial({monomial: factor for monomial, factor in terms.items() if factor})

    def __mul__(self, other: Polynomial) -> Polynomial:
        total = Polynomial({})
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                total += Polynomial({tuple(sorted((*left, *right))): a * b})
        return total

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + number(-1) * other

    @property
    def factors(self) -> frozenset[str]:
        return frozenset(factor for monomial in self.terms for factor in monomial)

    @property
    def value(self) -> int | None:
        """The number that it is, if it depends on no name."""
        return self.terms.get((), 0) if set(self.terms) <= {()} else None

    @property
    def adds_up(self) -> bool:
        """Nothing is subtracted: never negative where no factor is."""
        return all(factor > 0 for factor in self.terms.values())

    def over(self, other: Polynomial) -> Polynomial | None:
        """What times `other`, which is one product, it is; None if it is no multiple of it."""
        if len(other.terms) != 1:
            return None
        ((wanted, times),) = other.terms.items()
        terms = {}
        for monomial, factor in self.terms.items():
            left = list(monomial)
            for each in wanted:
                if each not in left:
                    return None
                left.remove(each)
            if factor % times:
                return None
            terms[tuple(left)] = factor // times
        return Polynomial(terms)

    def __str__(self) -> str:
        """As Python writes it; what is subtracted comes after what is added, and a number last."""
        ordered = sorted(self.terms.items(), key=lambda term: (term[1] < 0, not term[0]))
        if len(ordered) == 1 and ordered[0][1] == 1 and len(ordered[0][0]) == 1:
            return ordered[0][0][0]
        text = ""
        for monomial, factor in ordered:
            times = [] if abs(factor) == 1 and monomial else [str(abs(factor))]
            sign = " - " if factor < 0 else " + "
            text += (sign if text else sign.strip(" +")) + " * ".join([*times, *map(_atom, monomial)])
        return text or "0"

    def split(self, variable: str) -> tuple[Polynomial, Polynomial]:
        """(a, b) with self == a * variable + b; a may still contain the variable if self is not linear in it."""
        with_it, rest = {}, {}
        for monomial, factor in self.terms.items():
            if variable in monomial:
                left = list(monomial)
                left.remove(variable)
                with_it[tuple(left)] = factor
            else:
                rest[monomial] = factor
        return Polynomial(with_it), Polynomial(rest)


def _atom(factor: str) -> str:
    """A factor's text, ready to be multiplied."""
    expression = expression_of(factor)
    plain = (cst.Name, cst.Attribute, cst.Subscript, cst.Call, cst.Integer)
    return factor if isinstance(expression, plain) else f"({factor})"


@lru_cache(maxsize=4096)
def expression_of(factor: str) -> cst.BaseExpression:
    """To look at, not to put into a tree: every time the same nodes."""
    return cst.parse_expression(factor)


def number(value: int) -> Polynomial:
    return Polynomial({(): value} if value else {})


class Indices:
    """Reads the index expressions of one kernel, looking through names that are defined once."""

    def __init__(self, code: KernelCode, through: frozenset[str] | None = None) -> None:
        self._code = code
        self._through = through
        """Names to look through; None: all."""
        self._names: dict[str, frozenset[str]] = {}
        self._least: dict[str, tuple[Polynomial, ...]] = {}

    def polynomial(self, expression: cst.BaseExpression, at: Statement) -> Polynomial:
        """The expression as `at`, the statement that contains it, evaluates it."""
        if isinstance(expression, cst.Integer):
            return number(expression.evaluated_value)
        if isinstance(expression, cst.UnaryOperation) and isinstance(expression.operator, cst.Minus):
            return number(-1) * self.polynomial(expression.expression, at)
        if isinstance(expression, cst.BinaryOperation):
            left, right = expression.left, expression.right
            if isinstance(expression.operator, cst.Add):
                return self.polynomial(left, at) + self.polynomial(right, at)
            if isinstance(expression.operator, cst.Subtract):
                return self.polynomial(left, at) - self.polynomial(right, at)
            if isinstance(expression.operator, cst.Multiply):
                return self.polynomial(left, at) * self.polynomial(right, at)
        if isinstance(expression, cst.Name):
            definition = self._definition(expression.value, at)
            if definition is not None:
                value, where = definition
                return self.polynomial(value, where)
        return self._factor(expression, at)

    def expanded(self, polynomial: Polynomial, at: Statement) -> Polynomial:
        """The same, seen through every name that these indices look through."""
        total = number(0)
        for monomial, times in polynomial.terms.items():
            product = number(times)
            for factor in monomial:
                product *= self.polynomial(expression_of(factor), at)
            total += product
        return total

    def names(self, polynomial: Polynomial) -> frozenset[str]:
        """Names whose values it depends on."""
        return frozenset().union(*(self._names.get(factor, frozenset({factor})) for factor in polynomial.factors))

    def at_most(self, polynomial: Polynomial, limit: Polynomial) -> bool:
        """It is the limit, or min(limit, ...), or both are numbers and it is the smaller one."""
        if polynomial == limit:
            return True
        if set(polynomial.terms) == set(limit.terms) == {()}:
            return 0 < polynomial.terms[()] < limit.terms[()]
        for monomial, times in polynomial.terms.items():
            if times == 1 and len(monomial) == 1 and monomial[0] in self._least:
                rest = polynomial - Polynomial({monomial: 1})
                return any(least + rest == limit for least in self._least[monomial[0]])
        return False

    def _factor(self, expression: cst.BaseExpression, at: Statement) -> Polynomial:
        text = text_of(expression)
        self._names[text] = self._all_names(expression, at)
        if (
            isinstance(expression, cst.Call)
            and isinstance(expression.func, cst.Name)
            and expression.func.value == "min"
            and self._code.is_pythons_own("min")
        ):
            self._least[text] = tuple(self.polynomial(arg.value, at) for arg in expression.args)
        return Polynomial({(text,): 1})

    def _all_names(self, expression: cst.BaseExpression, at: Statement) -> frozenset[str]:
        """Names in it, and in the definitions of those names."""
        found: set[str] = set()
        waiting = [(name, at) for name in loaded_names(expression)]
        while waiting:
            name, where = waiting.pop()
            if name in found:
                continue
            found.add(name)
            definition = self._definition(name, where)
            if definition is not None:
                waiting.extend((inner, definition[1]) for inner in loaded_names(definition[0]))
        return frozenset(found)

    def _definition(self, name: str, at: Statement) -> tuple[cst.BaseExpression, Statement] | None:
        """The one value that the name has there, when it is defined once, earlier, in a block around `at`."""
        if self._through is not None and name not in self._through:
            return None
        bindings = self._code.bindings(name)
        if len(bindings) != 1 or bindings[0].kind is not Kind.DEFINE or name in self._code.captured:
            return None
        binding = bindings[0]
        line = binding.node
        if not isinstance(line, cst.SimpleStatementLine) or not isinstance(line.body[0], cst.Assign):
            return None
        around = (at.block, *(owner.block for owner in at.block.loops()))
        if binding.block not in around or binding.line >= at.line:
            return None
        small = line.body[0]
        if not isinstance(small.targets[0].target, cst.Name):
            return None
        for inner in loaded_names(small.value):
            if len(self._code.bindings(inner)) > 1 and not self._counts_both(inner, binding, at):
                return None
        return small.value, binding

    def _counts_both(self, name: str, binding: Statement, at: Statement) -> bool:
        """The name is the variable of one loop around both, which nothing in that loop binds again."""
        loops = [loop for loop in binding.block.loops() if loop.variable == name]
        if len(loops) != 1 or loops[0] not in at.block.loops():
            return False
        return not any(loops[0] in other.block.loops() for other in self._code.bindings(name))
