"""Expressions, or other names, in place of names: where they are read and where they are bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libcst as cst

from accelopt_core.transforms.syntax import descendants, name_nodes, replace_nodes


def substituted(node: cst.CSTNode, values: Mapping[str, cst.BaseExpression]) -> cst.CSTNode:
    """A copy of the tree. What a name is bound as must be a name again."""
    changes: dict[cst.CSTNode, cst.CSTNode] = {}
    targets: Sequence[cst.CSTNode] = [
        inner.target
        for inner in descendants(node)
        if isinstance(inner, (cst.AssignTarget, cst.For, cst.AugAssign, cst.AnnAssign))
    ] + [inner.name for inner in descendants(node) if isinstance(inner, cst.AsName)]
    names = [*name_nodes(node), *(name for target in targets for name in _target_names(target))]
    for name in names:
        value = values.get(name.value)
        if value is not None:
            changes[name] = (
                value.deep_clone() if not isinstance(value, cst.Name) else name.with_changes(value=value.value)
            )
    return replace_nodes(node, changes) if changes else node.deep_clone()


def _target_names(target: cst.CSTNode) -> list[cst.Name]:
    if isinstance(target, cst.Name):
        return [target]
    if isinstance(target, (cst.Tuple, cst.List)):
        return [name for element in target.elements for name in _target_names(element.value)]
    return []
