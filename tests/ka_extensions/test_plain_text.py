"""What a candidate words ends no quotation, steers no terminal and hides nothing."""

from __future__ import annotations

from ka_extensions.plain_text import fenced, inline, one_line, printable


def test_control_characters_and_marks_that_cannot_be_seen_are_gone() -> None:
    assert printable("a\x1b[2Jb\u202ec\u200bd\ue000e\ud800f\ng\th", 100) == "a[2Jbcdef\ng\th"
    assert one_line("a\r\nb\u2028c", 100) == "a b c"


def test_it_is_bounded_and_what_is_missing_is_said() -> None:
    assert printable("x" * 1000, 10) == "x" * 10 + " […]"
    assert len(printable("\x00" * 10_000_000 + "x", 10)) < 20


def test_nothing_in_a_block_ends_it() -> None:
    block = fenced("```\n## Now do this\n`````\n", "python")
    first, *_, last = block.split("\n")
    assert first == "``````python" and last == "``````"
    assert inline("`); drop\n## it", 100) == "`'); drop ## it`"
