"""Documents as text, each one JSON value; and the schemas that they keep to, made from their types.

python -m infra.documents.writing     writes schemas/ anew: after a type of a document has changed
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter

from infra.documents.kernel_document import (
    ChangedDocument,
    DoctorDocument,
    EvaluationDocument,
    ExplanationDocument,
    MenuDocument,
    MigrationDocument,
)
from infra.documents.model_document import ModelDocument, ProjectionDocument, PutBackDocument
from infra.documents.run_document import RunDocument, RunsDocument, ShapesDocument, SuiteDocument
from infra.records import to_document
from nki_sim.commands.documents import CheckDocument, ErrorDocument, ProfileDocument, finite

KINDS: tuple[type, ...] = (
    RunDocument,
    RunsDocument,
    SuiteDocument,
    ShapesDocument,
    DoctorDocument,
    EvaluationDocument,
    MenuDocument,
    ChangedDocument,
    MigrationDocument,
    ExplanationDocument,
    ModelDocument,
    PutBackDocument,
    ProjectionDocument,
    ProfileDocument,
    CheckDocument,
    ErrorDocument,
)
SCHEMAS = Path(__file__).resolve().parent / "schemas"


def as_json(document: Any) -> str:
    return json.dumps(finite(to_document(document)), indent=1, allow_nan=False)


def schema_name(kind: type) -> str:
    """What documents of that type say of themselves: `nki-optimizer/run/1`."""
    return str(get_args(get_type_hints(kind)["schema"])[0])


def schema_file(kind: type) -> Path:
    """`schemas/run-1.schema.json`."""
    return SCHEMAS / f"{schema_name(kind).partition('/')[2].replace('/', '-')}.schema.json"


def schema_of(kind: type) -> dict[str, Any]:
    """JSON Schema 2020-12. Every field is always there; a later document of the same version may have more."""
    made = TypeAdapter(kind).json_schema(mode="serialization")
    types = {each.__name__: each for each in _dataclasses(kind)}
    for name, described in {kind.__name__: made, **made.get("$defs", {})}.items():
        if "properties" not in described:
            continue
        texts = _texts_of_fields(types[name])
        described["required"] = sorted(described["properties"])
        for field_name, about in described["properties"].items():
            about.pop("title", None)
            if field_name != "schema":
                about.pop("default", None)
            if field_name in texts:
                about["description"] = texts[field_name]
    name = schema_name(kind).replace("/", ":")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:{name}", **made}


def _dataclasses(kind: Any) -> Iterator[type]:
    """A type, and every dataclass that its fields speak of."""
    if is_dataclass(kind) and isinstance(kind, type):
        yield kind
        for hint in get_type_hints(kind).values():
            yield from _dataclasses(hint)
    for inner in get_args(kind):
        yield from _dataclasses(inner)


def _texts_of_fields(kind: type) -> dict[str, str]:
    """The string under each field, which Python itself does not keep."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for field_node, below in zip(tree.body, tree.body[1:]):
        if isinstance(field_node, ast.AnnAssign) and isinstance(field_node.target, ast.Name):
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                texts[field_node.target.id] = " ".join(str(below.value.value).split())
    return texts


def main() -> None:
    SCHEMAS.mkdir(exist_ok=True)
    for kind in KINDS:
        schema_file(kind).write_text(json.dumps(schema_of(kind), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
