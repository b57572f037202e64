"""What every instruction may consist of: opcodes, operands, shapes, types, places."""
