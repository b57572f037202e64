"""What a reply means: realistic answers, messy ones, and those that must be refused with advice."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from accelopt_core.candidate import Attempt, source_hash
from accelopt_core.languages.nki.operators import kernel_operators
from accelopt_core.model.extraction import check_kernel, extract_kernel
from accelopt_core.model.prompting import numbered
from accelopt_core.proposer import UnusableReply
from ka_extensions.outcome import Outcome
from tests.attempts import attempted
from tests.llm.scenes import BETTER, KERNEL

SNIPPET = "nisa.dma_copy(dst=s, src=scale)"

SEARCH_REPLACE = """I move the load.

<<<<<<< SEARCH
    for i in range(rows // 128):
        s = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=s, src=scale)
=======
    s = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=s, src=scale)
    for i in range(rows // 128):
>>>>>>> REPLACE

and fuse:

<<<<<<< SEARCH
        nisa.tensor_scalar(dst=y, data=t, op0=nl.multiply, operand0=s)
        nisa.activation(dst=y, op=nl.silu, data=y)
=======
        nisa.activation(dst=y, op=nl.silu, data=t, scale=s)
>>>>>>> REPLACE
"""

DIFF = """--- a/kernel.py
+++ b/kernel.py
@@ -900,7 +10,7 @@ def kernel(x, scale):
     out = nl.ndarray((rows, cols), dtype=x.dtype, buffer=nl.shared_hbm)
-    for i in range(rows // 128):
-        s = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
-        nisa.dma_copy(dst=s, src=scale)
+    s = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
+    nisa.dma_copy(dst=s, src=scale)
+    for i in range(rows // 128):
         t = nl.ndarray((128, cols), dtype=nl.float32, buffer=nl.sbuf)
@@ -3,1 +3,1 @@
         y = nl.ndarray((128, cols), dtype=nl.float32, buffer=nl.sbuf)
-        nisa.tensor_scalar(dst=y, data=t, op0=nl.multiply, operand0=s)
-        nisa.activation(dst=y, op=nl.silu, data=y)
+        nisa.activation(dst=y, op=nl.silu, data=t, scale=s)
"""

GOOD = {
    "one fence": f"```python\n{BETTER}```",
    "prose around it": f"Sure! The load moves up.\n\n```python\n{BETTER}```\n\nThis saves about 60 µs.",
    "no language": f"```\n{BETTER}```", "another language name": f"```nki\n{BETTER}```",
    "tildes": f"~~~python\n{BETTER}~~~",
    "four ticks around three": f"````python\n{BETTER.replace('Scale every row.', 'Scale every row. ``` x')}````",
    "never closed": f"```python\n{BETTER}", "windows newlines": f"```python\n{BETTER}```".replace("\n", "\r\n"),
    "snippets before and after": f"```python\n{SNIPPET}\n```\n:\n```python\n{BETTER}```\nand\n```python\nx = 1\n```",
    "the old kernel first": f"Before:\n```python\n{KERNEL}```\nAfter:\n```python\n{BETTER}```",
    "the old kernel last": f"After:\n```python\n{BETTER}```\nBefore it was:\n```python\n{KERNEL}```",
    "a broken draft first": f"```python\n{BETTER[:-60]}\n```\nOops, cut. Again:\n```python\n{BETTER}```",
    "thoughts first": f"<think>\nmaybe ```python\n{KERNEL}``` no\n</think>\n```python\n{BETTER}```",
    "no fence at all": BETTER,
    "no fence, prose around": f"Here is the kernel:\n\n{BETTER}\nI hope that it's fast; let me know!\nBye.",
    "no fence, prose with an import in it": f"I will\nimport nothing new.\n\n{BETTER}",
    "json": '{"code": ' + json.dumps(BETTER) + "}",
    "json with a fence inside": '{"kernel": ' + json.dumps(f"```python\n{BETTER}```") + "}",
    "search and replace": SEARCH_REPLACE, "search and replace in a fence": f"```\n{SEARCH_REPLACE}```",
    "diff": f"```diff\n{DIFF}```\nDone.", "diff without a fence": f"Apply this:\n\n{DIFF}",
    "no-break spaces": f"```python\n{BETTER.replace('    for', chr(0xA0) * 4 + 'for')}```".replace(chr(0xA0), " "),
}  # fmt: skip


@pytest.mark.parametrize("reply", GOOD.values(), ids=GOOD.keys())
def test_the_kernel_is_found(reply: str) -> None:
    found = extract_kernel(reply, bases=[KERNEL])
    assert source_hash(found) == source_hash(BETTER)
    check_kernel(found, parent=KERNEL)


def test_line_marks_that_a_reply_copies_are_taken_out() -> None:
    assert extract_kernel(f"```python\n{numbered(BETTER)}\n```", bases=[KERNEL]).strip() == BETTER.strip()
    (marked,) = [line for line in numbered(KERNEL).splitlines() if line.endswith("#L10")]
    edit = f"<<<<<<< SEARCH\n{marked}\n=======\n    rows, cols = x.shape  # both\n>>>>>>> REPLACE"
    assert "  # both\n" in extract_kernel(edit, bases=[KERNEL])


def test_edits_apply_to_the_failed_try_first_and_only_where_they_fit_once() -> None:
    failed = KERNEL.replace("nl.silu", "nl.slu")
    edit = (
        "<<<<<<< SEARCH\n        nisa.activation(dst=y, op=nl.slu, data=y)\n=======\n        nisa.activation("
        "dst=y, op=nl.silu, data=y, scale=1.0)\n>>>>>>> REPLACE"
    )
    assert "scale=1.0" in extract_kernel(edit, bases=[failed, KERNEL])
    twice = "<<<<<<< SEARCH\n    x = 1\n=======\n    x = 2\n>>>>>>> REPLACE"
    base = "def kernel():\n    x = 1\n    y = 2\n    x = 1\n    return x\n"
    with pytest.raises(UnusableReply, match="fits 2 places"):
        extract_kernel(twice, bases=[base])
    prose = "import this idea and def that one, said the # model\n" * 20_000
    with pytest.raises(UnusableReply):
        extract_kernel(prose, bases=[KERNEL])


BAD = {
    "nothing": ("", "the reply is empty"),
    "prose": ("I would hoist the load out of the loop, then measure again.", "no code block"),
    "a fragment": (f"```python\n{SNIPPET}\n```", "only a fragment"),
    "a helper only": ("```python\ndef helper(x):\n    return x\n```", "defines no `kernel` or `optimized_kernel`"),
    "another name": (f"```python\n{BETTER.replace('def kernel(', 'def fast_kernel(')}```", "keep that name"),
    "cut in the middle": (f"```python\n{BETTER[:400]}", "not valid Python"),
    "broken indentation": (f"```python\n{BETTER.replace('    rows', '  rows', 1)}```", "not valid Python: "),
    "another language": ("```cpp\nvoid kernel(float *x) { for (;;) {} }\n```", "not valid Python"),
    "search text that is not there": (SEARCH_REPLACE.replace("src=scale", "src=scales"), "is not in the kernel"),
    "nothing to search for": ("<<<<<<< SEARCH\n\n=======\n    x = 1\n>>>>>>> REPLACE", "nothing to search for"),
    "half a search block": ("<<<<<<< SEARCH\nfoo\n=======\nbar\n", "0 complete SEARCH/REPLACE blocks"),
    "diff against something else": (DIFF.replace("out = nl", "result = nl"), "is not in the kernel"),
}


@pytest.mark.parametrize(("reply", "advice"), BAD.values(), ids=BAD.keys())
def test_what_is_missing_is_named(reply: str, advice: str) -> None:
    with pytest.raises(UnusableReply) as raised:
        extract_kernel(reply, bases=[KERNEL])
    assert advice in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.reply == reply


def attempt(source: str) -> Attempt:
    return attempted(
        3, "incorrect", name="c3", source=source, parent="c0", technique="t", title="Try it", summary="wrong"
    )


REFUSED = {
    "the parent again": (KERNEL, {}, "same code as the current kernel"),
    "the parent with other comments": (KERNEL.replace("rows, cols = x.shape", "rows, cols = x.shape  # faster"), {},
                                       "same code as the current kernel"),
    "tried in an earlier round": (BETTER, {"history": (attempt(BETTER),)},
                                  "attempt of round 3 ('Try it'), which came out as incorrect"),
    "tried in this round": (BETTER, {"failed": (BETTER + "\n# again\n",)}, "a try that just failed"),
    "other parameters": (BETTER.replace("(x, scale)", "(scale, x)"), {}, "(scale, x) but must stay (x, scale)"),
    "no entry": (BETTER.replace("def kernel", "def other"), {}, "keep the kernel's name"),
    "huge": (BETTER + "#" * 400_001, {}, "more than 400,000"),
    "not Python": ("def kernel(:\n", {}, "not valid Python"),
    "nested beyond reason": ("def kernel(x, scale):\n    return " + "(" * 3000 + ")" * 3000, {}, "not valid Python"),
}  # fmt: skip


@pytest.mark.parametrize(("source", "known", "advice"), REFUSED.values(), ids=REFUSED.keys())
def test_a_kernel_must_be_complete_and_new(source: str, known: dict[str, tuple[object, ...]], advice: str) -> None:
    with pytest.raises(UnusableReply) as raised:
        check_kernel(source, parent=KERNEL, **known)  # type: ignore[arg-type] # the table's keywords
    assert advice in str(raised.value)
    assert raised.value.reply == source


def test_a_kernel_that_was_not_sent_to_the_device_may_be_written_again() -> None:
    check_kernel(BETTER, parent=KERNEL, history=(replace(attempt(BETTER), outcome=Outcome.OUTRANKED),))


@pytest.mark.parametrize(
    "header",
    [
        "import nki.isa as nisa\nimport nki.language as nl",
        "from nki import isa as nisa, language as nl",
        "from nki import isa, language as nl\nnisa = isa",
    ],
)
def test_operators_survive_other_ways_to_import(header: str) -> None:
    assert kernel_operators(KERNEL) == ("activation:silu", "dma_copy", "tensor_scalar:multiply")
    assert kernel_operators("def (") == ()
    call = "isa" if "nisa = isa" in header else "nisa"
    source = f"{header}\n# nisa.nc_matmul\n{call}.activation(dst=a, op=nl.exp, data=b, reduce_op=nl.add)\n"
    assert kernel_operators(source) == ("activation:add", "activation:exp")


def test_a_kernel_of_another_name_is_known_by_it() -> None:
    named = BETTER.replace("def kernel", "def row_silu")
    assert named != BETTER
    reply = f"```python\n{named}```"
    assert "def row_silu" in extract_kernel(reply, bases=[KERNEL], names=("row_silu",))
    with pytest.raises(UnusableReply, match="`row_silu`"):
        extract_kernel(f"```python\n{BETTER}```", bases=[KERNEL], names=("row_silu",))
    with pytest.raises(UnusableReply, match="`row_silu` at its top level"):
        check_kernel(BETTER, parent=KERNEL, names=("row_silu",))
