"""A kernel's file as the rules of any language see it: its tree, what its names import, its functions."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class PythonFile:
    tree: ast.Module
    neighbours: frozenset[str] = frozenset()
    """Modules and packages beside the file, which it may import."""

    @cached_property
    def imports(self) -> dict[str, str]:
        """Local name -> dotted name of what it imports; one of the file's own package begins with dots."""
        found: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.partition(".")[0]
                    found[alias.asname or first] = alias.name if alias.asname else first
            elif isinstance(node, ast.ImportFrom):
                within = "." * node.level + (f"{node.module}." if node.module else "")
                found.update({alias.asname or alias.name: f"{within}{alias.name}" for alias in node.names})
        return found

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        return {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}

    def dotted(self, node: ast.AST) -> str:
        """`nl.exp` -> `nki.language.exp`; empty where it is not a plain dotted name of an import."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.imports:
            return ""
        return ".".join([self.imports[node.id], *reversed(parts)])
