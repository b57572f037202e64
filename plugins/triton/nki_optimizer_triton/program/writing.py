"""Launch programs written as bytes, by the process that ran a candidate's Python. Standard library only.

Layout: 8 bytes magic, then JSON. `program_file.py` reads them.
"""

from __future__ import annotations

import json
from typing import Any

from nki_optimizer_triton.program.launch_program import (
    ConstexprValue,
    DescriptorValue,
    DtypeValue,
    Fill,
    FunctionValue,
    Launch,
    LaunchProgram,
    ModuleValue,
    TensorValue,
    TupleValue,
    Value,
)

MAGIC = b"TRITON1\n"
MOST_BUFFERS = 4_096
MOST_STEPS = 4_096


def dumps(program: LaunchProgram) -> bytes:
    """Equal programs give equal bytes."""
    data = {
        "arguments": program.arguments,
        "argument_shapes": [list(shape) for shape in program.argument_shapes],
        "buffers": [[b.dtype, b.elements, b.line] for b in program.buffers],
        "steps": [_step(step) for step in program.steps],
        "outputs": [encode(output) for output in program.outputs],
        "functions": [[encode(f), [[name, encode(value)] for name, value in names]] for f, names in program.functions],
        "tunables": [
            [encode(t.function), [[[name, encode(value)] for name, value in config] for config in t.configs]]
            for t in program.tunables
        ],
    }
    return MAGIC + json.dumps(data, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()


def _step(step: Fill | Launch) -> list[Any]:
    if isinstance(step, Fill):
        return ["fill", encode(step.tensor), encode(step.value), step.line]
    options = step.options
    return [
        "launch",
        encode(step.function),
        list(step.grid),
        [[name, encode(value)] for name, value in step.arguments],
        [options.num_warps, options.num_stages, options.num_ctas, options.maxnreg],
        step.line,
        step.config,
    ]


def encode(value: Value) -> list[Any]:
    """As JSON: a tag and its fields; floats as hexadecimal text, which loses no bit."""
    match value:
        case bool():
            return ["bool", value]
        case int():
            return ["int", value]
        case float():
            return ["float", value.hex()]
        case str():
            return ["str", value]
        case None:
            return ["none"]
        case TensorValue():
            return ["tensor", value.buffer, value.dtype, value.offset, list(value.shape), list(value.strides)]
        case DescriptorValue():
            return ["descriptor", encode(value.tensor), list(value.block_shape), value.padding]
        case DtypeValue():
            return ["dtype", value.language]
        case FunctionValue():
            return ["function", value.file, value.name]
        case TupleValue():
            return ["tuple", [encode(item) for item in value.items]]
        case ModuleValue():
            return ["module", value.dotted]
        case ConstexprValue():
            return ["constexpr", encode(value.value)]
