"""What a child process does on the GPU: operands, the check of a candidate, slots of all of them in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tilewright import measure, nvrtc
from tilewright.backends.base import Backend, Matrix
from tilewright.errors import LaunchError, VerifyError
from tilewright.plan_base import Plan
from tilewright.problem import Problem
from tilewright.rivals import kernel_rival, operand_sets, vendor_library
from tilewright.run import source_for
from tilewright.selection import kernel_of
from tilewright.source import KernelSource
from tilewright.tune.decide import decide
from tilewright.verify import Report, verify

if TYPE_CHECKING:
    from tilewright.library.trial import Trial

CHECKED_SETS = 2  # each is held against float64 element by element
Told = Callable[[str], None]  # given the name of a candidate just before it runs


class Bench(Protocol):
    """What ``child.serve`` has at its command."""

    def pose(self, work: Problem | Trial, plans: Sequence[Plan], seed: int) -> str:
        """Make operands, and whatever the plans need that takes long. Returns what L2 holds of them."""
        ...

    def check(self, name: str, plan: Plan, ran: Callable[[], None]) -> Report:
        """Run a candidate on poisoned output and hold it against the reference; it is then ready to be timed.

        ``ran`` is called when the candidate has ended and only the reference is still to be computed.
        """
        ...

    def measure(self, names: Sequence[str], schedule: measure.Schedule, told: Told) -> measure.Measurement:
        """Time candidates, in the planner's order, until ``decide`` has enough or the rounds are over."""
        ...


class Poisoning(Backend, Protocol):
    """A backend whose matrices can be filled with NaN again."""

    def poison(self, matrix: Matrix) -> None:
        """So, padding included, after all work before it."""
        ...


class Announced:
    """A timer that says whose launches it is about to run, and runs nothing more once some have failed.

    ``measure`` would go on with the other rivals, each of which fails on a GPU whose context is lost.
    """

    def __init__(self, timer: measure.Timer, rivals: Sequence[measure.Rival], told: Told) -> None:
        self._timer, self._told = timer, told
        self._names = {id(rival.launches): rival.name for rival in rivals}
        self._ready: list[tuple[Any, str]] = []
        self.error: Exception | None = None

    def prepare(self, launches: Sequence[measure.Launch], count: int) -> Any:
        """As ``measure.Timer`` has it."""
        name = self._names[id(launches)]
        prepared = self._attempt(name, lambda: self._timer.prepare(launches, count))
        self._ready.append((prepared, name))
        return prepared

    def slot(self, prepared: Any, warm: int, timed: int, sample: Callable[[], None] | None = None) -> measure.Slot:
        """As ``measure.Timer`` has it; the GPU's state is not read, for which a short slot would have to wait."""
        name = next(name for each, name in self._ready if each is prepared)
        slot: measure.Slot = self._attempt(name, lambda: self._timer.slot(prepared, warm, timed))
        return slot

    def _attempt(self, name: str, work: Callable[[], Any]) -> Any:
        if self.error is not None:  # nobody else runs, and is blamed, on what may be left of the GPU's context
            raise self.error
        self._told(name)
        try:
            return work()
        except Exception as error:
            self.error = error
            raise


class Posed(Protocol):
    """Work with operands: what ``KernelBench`` has its candidates do."""

    label: str
    """What L2 holds of the operands."""
    sets: Sequence[Any]
    """The operands, set by set."""

    def source(self, plan: Plan) -> KernelSource:
        """The text of a candidate's kernel."""
        ...

    def check(self, name: str, plan: Plan, ran: Callable[[], None]) -> tuple[measure.Rival, Report]:
        """As ``Bench.check``, and the candidate ready to be timed."""
        ...


class Products:
    """A plain product, held against float64."""

    def __init__(self, backend: Poisoning, problem: Problem, l2_bytes: int, seed: int) -> None:
        self._backend = backend
        self._device: Any = "cuda" if backend.name == "cuda" and vendor_library() == "torch" else "auto"
        rotation = measure.rotation(problem.bytes_moved, l2_bytes)
        self.label = rotation.label
        self.sets: Sequence[Any] = operand_sets(backend, problem, rotation.sets, seed=seed)
        download = backend.download
        self._read = [(download(each.a), download(each.b)) for each in self.sets[:CHECKED_SETS]]

    def source(self, plan: Plan) -> KernelSource:
        """The text of a candidate's kernel."""
        return source_for(self._backend, kernel_of(plan), plan)

    def check(self, name: str, plan: Plan, ran: Callable[[], None]) -> tuple[measure.Rival, Report]:
        """On the first operand sets, each with a C full of NaN; the worst report. Raises as ``run.prepare`` does."""
        rival = kernel_rival(self._backend, kernel_of(plan), plan, self.sets, name)
        results = []
        for launch, operands, _ in zip(rival.launches, self.sets, self._read, strict=False):
            self._backend.poison(operands.c)
            launch(None)  # on the backend's own stream
            results.append(self._backend.download(operands.c))
            if not self._backend.padding_intact(operands.c):
                raise VerifyError("the padding between the rows of C was overwritten")
        ran()
        reports = [
            verify(c, a, b, dtype=plan.dtype, device=self._device)
            for c, (a, b) in zip(results, self._read, strict=True)
        ]
        return rival, max(reports, key=lambda report: (not report.ok, report.max_error_over_bound))


class KernelBench:
    """Candidates on a backend, timed by its timer, on N(0, 1) operands that rotate beyond L2."""

    def __init__(self, backend: Poisoning, timer: measure.Timer, l2_bytes: int) -> None:
        self._backend, self._timer, self._l2_bytes = backend, timer, l2_bytes
        self._rivals: dict[str, measure.Rival] = {}
        self.posed: Posed | None = None

    def pose(self, work: Problem | Trial, plans: Sequence[Plan], seed: int) -> str:
        """Compile side by side, which the cache remembers; what does not compile is told by ``check``."""
        self._rivals, self.posed = {}, None  # the memory of the last problem first
        posed: Posed
        if isinstance(work, Problem):
            posed = Products(self._backend, work, self._l2_bytes, seed)
        else:
            from tilewright.library.trial import Calls

            posed = Calls(self._backend, work, self._l2_bytes, seed)
        if self._backend.name == "cuda":
            nvrtc.compile_side_by_side(posed.source(plan) for plan in plans)
        self.posed = posed
        return posed.label

    def check(self, name: str, plan: Plan, ran: Callable[[], None]) -> Report:
        """By ``Products`` or ``Calls``."""
        assert self.posed is not None
        self._rivals[name], report = self.posed.check(name, plan, ran)
        return report

    def measure(self, names: Sequence[str], schedule: measure.Schedule, told: Told) -> measure.Measurement:
        """By ``time_all``."""
        return time_all([self._rivals[name] for name in names], self._timer, schedule, told)


def time_all(
    rivals: Sequence[measure.Rival], timer: measure.Timer, schedule: measure.Schedule, told: Told
) -> measure.Measurement:
    """Time rivals, in the planner's order, until more rounds would change nothing or the schedule ends.

    Raises what the first of them raises that fails, and ``told`` was told of none after it.
    """
    announced, names = Announced(timer, rivals, told), [rival.name for rival in rivals]

    def enough(seen: measure.Measurement) -> bool:
        return announced.error is not None or decide(seen.rounds, names).settled

    found = measure.measure(rivals, announced, schedule=schedule, enough=enough)
    if announced.error is not None:
        raise announced.error
    for timing in found.timings.values():
        if timing.error is not None:
            raise LaunchError(f"{timing.name} could not be timed: {timing.error}")
    return found


def of_gpu() -> Bench:
    """The bench of the GPU that is present."""
    from tilewright.backends.cuda import CudaBackend
    from tilewright.backends.cuda_timer import CudaTimer

    backend = CudaBackend()
    return KernelBench(backend, CudaTimer(backend), int(backend.device().details["l2_bytes"]))


def figures(found: measure.Measurement, names: Sequence[str]) -> Mapping[str, Any]:
    """What the parent is told of a measurement: each round's times, and each candidate's summary."""
    summaries = {name: summary.to_dict() for name in names if (summary := found.timings[name].time_us) is not None}
    notes = sorted({timing.note for timing in found.timings.values() if timing.note})
    return {"rounds": found.rounds, "time_us": summaries, "notes": notes}
