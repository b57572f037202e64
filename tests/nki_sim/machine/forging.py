"""Programs as a candidate's process could forge them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nki_sim.program.program import Program, Template


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
