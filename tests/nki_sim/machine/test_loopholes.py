"""Programs that looked faster than AWS's rules allow: each is refused by name, or costs what the honest form costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from traced_kernels import P, instruction, nisa, nl, tile

from nki_sim import program_file
from nki_sim.errors import NkiValidationError, ProgramFormatError
from nki_sim.program import Program, Template


def with_operand(program: Program, opcode: str, role: str, **changes: Any) -> Program:
    """The program as a candidate's process could forge it: one operand of one template is another."""

    def forged(template: Template) -> Template:
        if template.opcode != opcode:
            return template
        operands = tuple(replace(o, **changes) if o.role == role else o for o in template.operands)
        return replace(template, operands=operands)

    assert any(t.opcode == opcode and t.operand(role) for t in program.templates)
    templates = tuple(forged(template) for template in program.templates)
    return Program(
        **{**{name: getattr(program, name) for name in program.__dataclass_fields__}, "templates": templates}
    )


# --- access patterns --------------------------------------------------------------------------------

WIDE = 40_000
"""Elements of bfloat16 per partition."""


def copied(pattern: Any, columns: int = 512, dtype: Any = nl.float32) -> Callable[[], Any]:
    shape = [n for _, n in pattern]
    return lambda: nisa.tensor_copy(
        dst=nl.ndarray(shape, dtype, buffer=nl.sbuf), src=tile(columns, dtype).ap(pattern=pattern)
    )


PATTERNS: dict[str, tuple[Callable[[], Any], str]] = {
    "every second partition": (copied([[1024, 64], [1, 512]]), r"steps 2 partitions.*adjacent"),
    "one partition for all": (copied([[0, P], [1, 512]]), r"steps 0 partitions.*adjacent"),
    "a slice of every second partition": (
        lambda: nisa.tensor_copy(dst=tile(8, partitions=32), src=tile(8)[0:64:2, :]),
        "steps 2 partitions",
    ),
    "a transfer of every second partition": (
        lambda: nisa.dma_copy(dst=tile(8, partitions=32), src=tile(8)[0:64:2, :]),
        "steps 2 partitions.*HBM",
    ),
    "five dimensions": (copied([[512, P], [256, 2], [64, 2], [16, 2], [4, 2], [1, 2]]), "walks 5 dimensions.*has 4"),
    "a product's five dimensions": (
        lambda: nisa.nc_matmul(
            dst=tile(32, buffer=nl.psum),
            stationary=tile(P),
            moving=tile(512).ap(pattern=[[512, P], [256, 2], [64, 2], [16, 2], [4, 2], [1, 2]]),
        ),
        "nc_matmul: moving .* walks 5 dimensions",
    ),
    "a stride beyond 16 bits": (copied([[WIDE, P], [32_768, 2]], WIDE, nl.bfloat16), "steps 32768 elements.*32767"),
    "more elements than one instruction takes": (copied([[8, P], [0, 16_384], [1, 8]], 8), "131072 elements.*65536"),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_that_the_hardware_cannot_walk_is_refused(name: str) -> None:
    body, message = PATTERNS[name]
    with pytest.raises(NkiValidationError, match=message):
        instruction(body)


def test_patterns_at_the_limits_are_accepted() -> None:
    instruction(copied([[512, P], [256, 2], [64, 2], [16, 2], [4, 2]]))
    instruction(copied([[512, P], [256, 2], [128, 2], [64, 2], [32, 2], [16, 2], [1, 16]]))  # two after merging
    instruction(copied([[WIDE, P], [32_767, 2]], WIDE, nl.bfloat16))
    instruction(copied([[8, P], [0, 8192], [1, 8]], 8, nl.uint8))
    instruction(lambda: nisa.tensor_copy(dst=tile(8, partitions=1), src=tile(8)[32:33, :]))


FORGED_PATTERNS = {
    "partition stride 2": ([[1024, 64], [1, 512]], "steps 2 partitions"),
    "partition stride 0": ([[0, P], [1, 256]], "steps 0 partitions"),
    "eight dimensions": ([[512, P], [256, 2], [64, 2], [16, 2], [4, 2], [1, 2], [0, 2], [0, 2], [0, 4]], "dimensions"),
}


@pytest.mark.parametrize("name", FORGED_PATTERNS)
def test_a_forged_pattern_is_refused_when_the_file_is_read(name: str) -> None:
    pattern, message = FORGED_PATTERNS[name]
    honest = instruction(lambda: nisa.memset(dst=tile(512), value=0.0))
    assert len(program_file.loads(program_file.dumps(honest))) == 2
    forged = with_operand(honest, "memset", "dst", pattern=tuple(map(tuple, pattern)))
    with pytest.raises(ProgramFormatError, match=message):
        program_file.loads(program_file.dumps(forged))
