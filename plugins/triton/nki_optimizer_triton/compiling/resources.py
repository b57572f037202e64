"""What a kernel takes of a multiprocessor, read from its cubin: an ELF file whose sections say it.

Source: CUDA Binary Utilities (cuobjdump --dump-resource-usage prints REG, STACK, SHARED and LOCAL of each function from
these places): `.text.<kernel>` holds the code and, in the upper byte of its sh_info, the registers of a thread;
`.nv.info` holds for each function the attribute EIATTR_FRAME_SIZE (0x11), its stack in bytes, and EIATTR_REGCOUNT
(0x2f); `.nv.shared.<kernel>` is its static shared memory. triton_tests/test_resources.py holds this to cuobjdump.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass


class CubinUnreadable(Exception):
    """The machine code is no ELF file that says what it needs."""


@dataclass(frozen=True)
class Resources:
    registers: int
    """Of 32 bits, for each thread."""
    stack_bytes: int
    """Of local memory for each thread: what does not fit into registers, spills among it."""
    static_shared_bytes: int
    code_bytes: int


_FRAME_SIZE, _REGISTERS = 0x11, 0x2F


def resources_of(cubin: bytes, name: str) -> Resources:
    """Raises CubinUnreadable."""
    try:
        return _resources(cubin, name)
    except (struct.error, IndexError, KeyError, ValueError, OverflowError) as error:
        raise CubinUnreadable(f"the machine code cannot be read: {error}") from None


def _resources(cubin: bytes, name: str) -> Resources:
    if cubin[:4] != b"\x7fELF" or cubin[4] != 2 or cubin[5] != 1:
        raise CubinUnreadable("the machine code is no ELF file of 64 bits")
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + number * size) for number in range(count)]
    names_offset = sections[names_at][4]
    by_name = {_text(cubin, names_offset + section[0]): section for section in sections}
    code = by_name.get(f".text.{name}")
    if code is None:
        raise CubinUnreadable(f"the machine code has no kernel {name}")
    info = by_name.get(".nv.info")
    stack, registers = 0, code[7] >> 24
    symbol = _symbol(cubin, by_name, name)
    if info is not None:
        for attribute, index, value in _attributes(cubin[info[4] : info[4] + info[5]]):
            if index == symbol and attribute == _FRAME_SIZE:
                stack = value
            elif index == symbol and attribute == _REGISTERS:
                registers = value
    shared = by_name.get(f".nv.shared.{name}")
    return Resources(registers, stack, 0 if shared is None else shared[5], code[5])


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _symbol(cubin: bytes, by_name: dict[str, tuple[int, ...]], name: str) -> int:
    """Number of the kernel in the symbol table."""
    symbols, strings = by_name[".symtab"], by_name[".strtab"]
    for number in range(symbols[5] // 24):
        (at,) = struct.unpack_from("<I", cubin, symbols[4] + 24 * number)
        kind = cubin[symbols[4] + 24 * number + 4] & 0xF
        if kind == 2 and _text(cubin, strings[4] + at) == name:
            return number
    raise CubinUnreadable(f"the machine code has no symbol {name}")


def _attributes(data: bytes) -> list[tuple[int, int, int]]:
    """(attribute, symbol, value) of those that name a symbol and a number: format 4, size 8."""
    found, at = [], 0
    while at + 4 <= len(data):
        kind, attribute, size = data[at], data[at + 1], struct.unpack_from("<H", data, at + 2)[0]
        at += 4
        if kind == 4:
            if size == 8:
                symbol, value = struct.unpack_from("<II", data, at)
                found.append((attribute, symbol, value))
            at += size
    return found
