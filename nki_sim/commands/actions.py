"""What each command of `python -m nki_sim` does."""

from __future__ import annotations

import argparse
import inspect
import linecache
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

import nki_sim
from nki_sim import lint
from nki_sim.checks.accumulation import device_doubts
from nki_sim.commands import gantt
from nki_sim.commands.documents import ErrorDocument, as_json, check_document, profile_document
from nki_sim.commands.problem import BadProblem, beside_the_reference, drawn_inputs, load_problem, module_of
from nki_sim.dtypes import SHORT, as_dtype
from nki_sim.encoding import program_file
from nki_sim.errors import NkiError
from nki_sim.execution.executor import execute_counting
from nki_sim.loop_ir.reading import NotReadable, read
from nki_sim.loop_ir.sizes import NoForm
from nki_sim.loop_ir.source import KernelText
from nki_sim.loop_ir.spelling import NotWritable
from nki_sim.loop_ir.writing import written
from nki_sim.machine import Machine, machine
from nki_sim.migrate import command
from nki_sim.profile.profile import measure, summarise
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.passes import Passes, must_be_counted, unrolled
from nki_sim.program.program import Program
from nki_sim.timing.capacity import peak
from nki_sim.timing.cost import cost
from nki_sim.timing.schedule import schedule
from nki_sim.tracing.session import TensorSpec, target_machine, where

PROTOCOL = ("get_inputs", "forward", "transform_to_nki_inputs", "transform_nki_outputs")


class UsageError(Exception):
    """What to change in the command line."""


def carried_out(options: argparse.Namespace, document: TextIO | None) -> int:
    """Runs the command of these options and returns the exit status.

    `document`: where one JSON document goes, and nothing else.
    """
    try:
        return ACTIONS[options.command](options, document)
    except (UsageError, BadProblem) as error:
        return _complain(f"nki_sim: {error}", 2, document)
    except NkiError as error:
        place = f"{error.file}:{error.line}: " if error.line else ""
        return _complain(f"{place}{type(error).__name__}: {error}", 1, document)
    except BrokenPipeError:  # the reader of our output has gone
        return 1
    except SyntaxError as error:
        return _complain(f"{error.filename}:{error.lineno}: SyntaxError: {error.msg}", 1, document)
    except Exception as error:  # whatever the kernel's own Python raises is reported at its line
        line, file = where(error)
        place = f"{file}:{line}: " if line is not None else ""
        said = str(error)
        if isinstance(error, AssertionError) and not said and file is not None and line is not None:
            said = linecache.getline(file, line).strip()
        return _complain(f"{place}{type(error).__name__}: {said}", 1, document)


def _complain(problem: str, status: int, document: TextIO | None) -> int:
    print(problem, file=sys.stderr)
    if document is not None:
        print(as_json(ErrorDocument(problem, status)), file=document)
    return status


def _file_and_function(kernel: Path) -> tuple[Path, str]:
    """`file.py:function` in two; without a function, an empty name."""
    text, _, wanted = str(kernel).partition(".py:")
    return Path(text + ".py" if wanted else text), wanted


def _load(options: argparse.Namespace, marks: bool = False) -> Any:
    """The kernel: the named function, or the only one decorated with nki.jit. `marks`: as of `module_of`."""
    nki_sim.install()
    from nki_sim.nki import Kernel  # only once `import nki` means the simulator

    path, wanted = _file_and_function(options.kernel)
    if not path.is_file():
        raise UsageError(f"no kernel file {path}")
    sys.path.insert(0, str(path.parent))
    module = module_of(path, path.stem, marks)
    kernels = {name: value for name, value in vars(module).items() if isinstance(value, Kernel)}
    if wanted:
        found = getattr(module, wanted, None)
        if not callable(found):
            raise UsageError(f"{path} has no function {wanted}")
        kernel: Any = found if isinstance(found, Kernel) else Kernel(found)
    elif len(kernels) == 1:
        kernel = next(iter(kernels.values()))
    else:
        raise UsageError(
            f"{path} has {len(kernels)} functions with @nki.jit ({', '.join(kernels)}): name one, {path}:name"
        )
    return kernel if options.lnc is None else kernel[options.lnc]


def _specs(options: argparse.Namespace) -> list[TensorSpec]:
    specs = []
    for text in options.shape:
        sizes, _, dtype = text.partition(":")
        try:
            shape = tuple(int(n) for n in sizes.split("x"))
            specs.append(TensorSpec(shape, as_dtype(SHORT.get(dtype, dtype or "float32"))))
        except ValueError:
            raise UsageError(f"--shape {text}: write it as 128x512:float32") from None
        except NkiError as error:
            raise UsageError(f"--shape {text}: {error}") from None
    on = machine(options.machine or target_machine())
    held = sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in specs)
    if held > on.device_hbm_bytes:
        raise UsageError(
            f"--shape: the arrays have {held / 2**30:,.0f} GiB, and a device of {on.name} has "
            f"{on.device_hbm_bytes / 2**30:,.0f} GiB of HBM"
        )
    return specs


def _call(kernel: Any, arrays: Sequence[Any], constants: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arrays in the order of the parameters that --set does not name. Raises UsageError where that is no call of it."""
    try:
        function = getattr(kernel, "__wrapped__", kernel)
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a callable without a Python signature
        return list(arrays), constants
    left, keywords, positional = list(arrays), dict(constants), []
    for name, parameter in signature.parameters.items():
        if not left or parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            break
        positional.append(keywords.pop(name) if name in keywords else left.pop(0))
    positional += left
    try:
        signature.bind(*positional, **keywords)
    except TypeError as error:
        named = f"{getattr(function, '__name__', 'the kernel')}{signature}"
        raise UsageError(
            f"{named}: {error}: give arrays by --shape or --inputs, in their order, and all else by --set NAME=VALUE"
        ) from None
    return positional, keywords


def _arrays(options: argparse.Namespace) -> list[np.ndarray]:
    if options.inputs and options.shape:
        raise UsageError("give --inputs or --shape, not both")
    arrays = []
    for path in options.inputs:
        try:
            arrays.append(np.load(path, allow_pickle=False))
        except (OSError, ValueError) as error:
            raise UsageError(f"--inputs {path}: {error}") from None
    rng = np.random.default_rng(options.seed)
    for spec in _specs(options):
        values = rng.standard_normal(spec.shape) if spec.dtype.is_float else rng.integers(0, 100, spec.shape)
        arrays.append(values.astype(spec.dtype.numpy))
    return arrays


def _constants(options: argparse.Namespace) -> dict[str, Any]:
    import ast

    constants = {}
    for text in options.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text}: write it as NAME=VALUE")
        try:
            constants[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            constants[name] = value
    return constants


def _run(options: argparse.Namespace, _: TextIO | None) -> int:
    kernel = _load(options)
    module, inputs = None, []
    if options.problem is not None:
        module = load_problem(options.problem, *PROTOCOL, drawn=_drawn(options))
        inputs = drawn_inputs(module, options.seed)
    arrays = _arrays(options) if module is None else list(module.transform_to_nki_inputs(inputs))
    arguments, keywords = _call(kernel, arrays, _constants(options))
    start = time.perf_counter()
    result = nki_sim.simulate(kernel, options.machine)(*arguments, **keywords)
    seconds = time.perf_counter() - start
    outputs = result if isinstance(result, tuple) else () if result is None else (result,)
    for number, output in enumerate(outputs):
        wide = output.astype(np.float64)
        print(
            f"output {number}: {list(output.shape)} {output.dtype}, mean {wide.mean():.6g}, "
            f"min {wide.min():.6g}, max {wide.max():.6g}, {int(np.isnan(wide).sum())} NaN"
        )
        if options.output:
            np.save(f"{options.output}{number}.npy", output)
    for line in beside_the_reference(module, inputs, outputs) if module is not None else ():
        print(line)
    print(f"simulated in {seconds:.2f} s")
    return 0


def _check(options: argparse.Namespace, document: TextIO | None) -> int:
    path, _ = _file_and_function(options.kernel)
    try:
        source = path.read_text()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    findings = lint.check_source(source, options.nki, hints=options.hints)
    if not any(finding.rule == "python-syntax" for finding in findings):
        findings = sorted([*findings, *_found_in_the_trace(options, path, source)], key=lambda f: (f.line, f.rule))
    errors = sum(finding.severity == "error" for finding in findings)
    if document is not None:
        print(as_json(check_document(str(path), options.nki, findings)), file=document)
        return 1 if errors else 0
    for finding in findings:
        print(f"{path}:{finding.line}: {finding.severity}: [{finding.rule}] {finding.message}; {finding.hint}")
    warnings = sum(finding.severity == "warning" for finding in findings)
    hints = f", {len(findings) - errors - warnings} hints" if options.hints else ""
    print(f"{errors} errors, {warnings} warnings{hints} for NKI {options.nki}")
    return 1 if errors else 0


_REFERENCES = ("{stem}_reference.py", "{stem}_ref.py", "reference.py", "ref.py")
"""Names of a reference beside a kernel's file, as the optimizer looks for it."""


def _found_in_the_trace(options: argparse.Namespace, path: Path, source: str) -> list[lint.Finding]:
    """What no text shows, at the arguments given, or where the file gives accumulate= at those of the reference beside
    it; there it is a warning if the kernel cannot be traced."""
    given = bool(options.problem or options.shape or options.inputs)
    severity = "error" if given else "warning"
    if not given:
        line = next((n for n, text in enumerate(source.splitlines(), 1) if "accumulate=" in text), None)
        if line is None:
            return []
        beside = [path.with_name(name.format(stem=path.stem)) for name in _REFERENCES]
        options.problem = next((each for each in beside if each != path and each.is_file()), None)
        if options.problem is None:
            said = "accumulate= is given, and whether sums share a PSUM bank shows at the kernel's shapes only"
            remedy = "give --problem REF.py or --shape 128x512:float32"
            return [lint.Finding("psum-groups", line, said, remedy, severity)]
    try:
        doubts = device_doubts(_traced(options))
    except Exception as error:  # whatever the kernel's own Python raises
        if given and isinstance(error, (UsageError, BadProblem)):
            raise
        found, _ = where(error)
        said = f"it does not trace: {type(error).__name__}: {error}"
        return [lint.Finding("trace", found or 1, said, "python -m nki_sim run says more", severity)]
    return [lint.Finding(doubt.rule, doubt.line, doubt.message, doubt.remedy) for doubt in doubts]


def _traced(options: argparse.Namespace) -> Program:
    kernel = _load(options)
    arguments, keywords = _given(options, kernel)
    return nki_sim.trace(kernel, *arguments, machine=options.machine, **keywords)


def _given(options: argparse.Namespace, kernel: Any) -> tuple[list[Any], dict[str, Any]]:
    if getattr(options, "problem", None) is not None:
        tensors = _problem_specs(options)
    else:
        tensors = [*_specs(options)] or [TensorSpec(a.shape, as_dtype(a.dtype)) for a in _arrays(options)]
    return _call(kernel, tensors, _constants(options))


def _trace(options: argparse.Namespace, _: TextIO | None) -> int:
    program = _traced(options)
    if options.save is not None:
        program_file.dump(program, options.save)
        print(f"{options.save}: {len(program)} instructions, {len(program.templates)} templates")
        return 0
    for row, number in enumerate(program.template_ids[: options.limit].tolist()):
        print(f"{row:>7}  {program.templates[number].describe()}")
    print(f"{len(program)} instructions of {len(program.templates)} kinds, {len(program.allocations)} buffers")
    for region in (MemoryRegion.sbuf, MemoryRegion.psum):
        at = peak(program, region)
        print(f"{region.value}: {at.live_bytes:,.0f} of {at.limit_bytes:,} bytes per partition at the peak")
    return 0


def _migrate(options: argparse.Namespace, _: TextIO | None) -> int:
    values = _arrays(options) if options.problem is None else _problem_values(options)
    try:
        dialect, migration = command.migrate_file(
            options.kernel,
            options.function,
            values,
            _constants(options),
            options.also_valid_in is not None,
            tuple(int(n) for n in options.grid.split("x") if n),
        )
    except (command.Unclear, OSError, SyntaxError) as error:
        raise UsageError(f"{options.kernel}: {error}") from None
    if options.output is not None:
        options.output.write_text(migration.source, encoding="utf-8")
    else:
        print(migration.source)
    print(command.report(options.kernel, dialect, migration), file=sys.stderr)
    return migration.exit_code()


def _normal(options: argparse.Namespace, _: TextIO | None) -> int:
    kernel = _load(options, marks=True)
    arguments, keywords = _given(options, kernel)
    program = nki_sim.trace(kernel, *arguments, machine=options.machine, **keywords)
    path = _file_and_function(options.kernel)[0]
    source = KernelText(path.read_text(encoding="utf-8"), program.kernel_name)
    source = source.with_scalars([arguments], lambda given: not isinstance(given, TensorSpec), keywords)
    try:
        text = written([read(program)], source)
    except (NotReadable, NotWritable, NoForm) as error:
        print(f"{path} has no normal form: {error}", file=sys.stderr)
        return 1
    print(text, end="")
    return 0


def _profile(options: argparse.Namespace, document: TextIO | None) -> int:
    program = _traced(options)
    passes = _counted(program, options)
    alone = unrolled(replace(program, peers=()), None if passes is None else passes.cores[0])
    timeline = schedule(alone, machine(program.machine))
    measured = measure(program, passes=passes) if program.peers else summarise(timeline)
    if options.perfetto is not None:
        with open(options.perfetto, "w", encoding="utf-8") as file:
            gantt.write_timeline(timeline, file)
    if document is not None:
        written = str(options.perfetto) if options.perfetto is not None else None
        print(as_json(profile_document(str(options.kernel), measured, written)), file=document)
        return 0
    print(gantt.report(measured, gantt.source_lines(program)))
    if dropped := _transfers(alone, timeline.machine) - _transfers(timeline.program, timeline.machine):
        print(f"{dropped} transfers bring what is there already: compilers drop them, so they take no time here\n")
    print(gantt.gantt(timeline, ascii_only=options.ascii), end="")
    if options.fields:
        print()
        for name, value in measured.fields.items():
            print(f"{name:<44} {value:.6g}")
    if options.perfetto is not None:
        print(f"\ntimeline: {options.perfetto} (open it at ui.perfetto.dev)")
    return 0


def _transfers(program: Program, on: Machine) -> int:
    counts = np.bincount(program.template_ids, minlength=len(program.templates)).tolist()
    moves = (cost(template, on).transfer is not None for template in program.templates)
    return sum(count for count, is_move in zip(counts, moves) if is_move)


def _counted(program: Program, options: argparse.Namespace) -> Passes | None:
    """How often device loops ran on the given inputs; None where registers decide nothing."""
    if not must_be_counted(program):
        return None
    values = _problem_values(options) if options.problem is not None else _arrays(options)
    return execute_counting(program, [value for value in values if isinstance(value, np.ndarray)])[1]


def _problem_specs(options: argparse.Namespace) -> list[Any]:
    """The arguments that a reference module gives its kernel, tensors by shape and dtype only."""
    values = _problem_values(options)
    return [TensorSpec(v.shape, as_dtype(v.dtype)) if isinstance(v, np.ndarray) else v for v in values]


def _drawn(options: argparse.Namespace) -> Callable[[], list[Any]] | None:
    """What the command line draws or reads, for a reference that is a plain function."""
    return (lambda: _arrays(options)) if options.shape or options.inputs else None


def _problem_values(options: argparse.Namespace) -> list[Any]:
    """The arguments that a reference module gives its kernel."""
    module = load_problem(options.problem, "get_inputs", "transform_to_nki_inputs", drawn=_drawn(options))
    return list(module.transform_to_nki_inputs(module.get_inputs()))


ACTIONS: Mapping[str, Callable[[argparse.Namespace, TextIO | None], int]] = {
    "run": _run,
    "check": _check,
    "trace": _trace,
    "normal": _normal,
    "profile": _profile,
    "migrate": _migrate,
}
