"""``warmup``: what calls to come will need is chosen and compiled now, so that none of them waits for a compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from tilewright.backends.cuda_errors import cuda_unavailable_reason
from tilewright.compile_counter import compiles
from tilewright.dtypes import DType
from tilewright.library import expected
from tilewright.library.answers import answer
from tilewright.library.api import Matmul
from tilewright.library.arrange import Arranged
from tilewright.library.calls import laid_out, made_ready
from tilewright.library.choose import Choice
from tilewright.library.prepared import make_ready
from tilewright.library.request import Options, Request
from tilewright.library.workspaces import Workspaces
from tilewright.nvrtc import Compiled, compile_kernel, key_of
from tilewright.run import DEFAULT_ARCH
from tilewright.selection import kernel_of
from tilewright.source import KernelSource


@dataclass(frozen=True)
class CompiledKernel:
    """A compiled kernel with what it was compiled from."""

    source: KernelSource
    compiled: Compiled

    @property
    def name(self) -> str:
        """Its file's."""
        return self.source.name


class Collector:
    """A backend that compiles for an architecture and launches nothing: it keeps what was asked of it, by its key."""

    name = "compiler"

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.kernels: dict[str, CompiledKernel] = {}

    def compile(self, source: KernelSource) -> CompiledKernel:
        """Compile, or find in the cache. Raises as ``nvrtc.compile_kernel``."""
        key = key_of(source)
        if key not in self.kernels:
            self.kernels[key] = CompiledKernel(source, compile_kernel(source))
        return self.kernels[key]


Launches = tuple[tuple[Arranged, Choice], ...]


@dataclass(frozen=True)
class Prepared:
    """A call's arrangements and choices, one of each kind of launch, and all their kernels by ``nvrtc.key_of``."""

    request: Request
    launches: Launches
    kernels: Mapping[str, CompiledKernel]


@dataclass(frozen=True)
class Warmed:
    """What was made ready for one call.

    ``kernels`` are the files of its kernels, ``source`` is how the plan was come by (``explain`` has the words). Of a
    call of several launches ``plan`` is that of the first. Where
    ``cached`` no compiler ran for it; where ``loaded`` it is on the GPU.
    """

    call: str
    kernels: tuple[str, ...]
    plan: Mapping[str, Any]
    source: str
    cached: bool
    loaded: bool

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {**asdict(self), "kernels": list(self.kernels)}


def warmup(
    shapes: Any,
    *,
    dtype: DType | str = "bf16",
    layout: str = "rr",
    out_dtype: DType | str | None = None,
    alpha: float = 1,
    beta: float = 0,
    c: str | None = None,
    bias: str | None = None,
    epilogue: Callable[..., Any] | None = None,
    args: Mapping[str, Any] | None = None,
    sms: int | None = None,
    batch_invariant: bool = False,
    device: int = 0,
) -> list[Warmed]:
    """Choose, compile and load what ``matmul`` needs for these shapes; without a GPU compile into the cache.

    ``shapes`` are as the command line takes them, ``"4096x4096x4096"`` (M, N, K) or a file of such, or ``(m, n, k)``,
    a ``Problem`` or a ``Matmul``: one, or several. ``dtype``, ``layout`` (a letter for A and one for B, ``r`` for row-
    and ``c`` for column-major) and ``out_dtype`` are those of shapes that do not say. What follows the product is said
    as to ``matmul``, but that there are no arrays yet: ``c``, ``bias`` and those of ``args`` are ``"m,n"``, ``"m,1"``,
    ``"1,n"`` or ``"n"``, and ``"m,n:fp32"`` where their element type is not A's. Arrays are taken to start on 16-byte
    boundaries and to have no padding; a ``Matmul`` says for itself what its arrays are like.

    On GPU number ``device`` kernels are loaded, and the first call with arrays of that geometry finds them. Without a
    GPU they are compiled for ``run.DEFAULT_ARCH`` with the plans for an H200, several at a time. A result without
    elements needs no kernel and is left out.

    Raises ``UsageError`` for what is no shape and as ``matmul`` does, ``UnavailableError`` without NVRTC.
    """
    options = Options(sms=sms, batch_invariant=batch_invariant)
    more = {"alpha": alpha, "beta": beta, "c": c, "bias": bias, "epilogue": epilogue, "args": args}
    wanted = requests(shapes, dtype, layout, out_dtype, device, options, more)
    if cuda_unavailable_reason() is None:
        return [made for each in wanted if (made := _loaded(each)) is not None]
    return [
        _warmed(each.request, each.launches, all(kernel.compiled.cached for kernel in each.kernels.values()), False)
        for each in prepared(wanted, DEFAULT_ARCH)
    ]


def requests(
    shapes: Any,
    dtype: DType | str,
    layout: str,
    out_dtype: DType | str | None,
    device: int,
    options: Options,
    more: Mapping[str, Any],
) -> list[Request]:
    """The calls that are meant. Raises ``UsageError``."""
    listed = [shapes] if isinstance(shapes, Matmul) else shapes
    given, rest = [], listed
    if isinstance(listed, list | tuple):
        given = [each for each in listed if isinstance(each, Matmul)]
        rest = [each for each in listed if not isinstance(each, Matmul)]
    problems = expected.problems(rest, dtype, layout, out_dtype) if rest or not given else []
    return [each.request for each in given] + [expected.request(each, device, options, **more) for each in problems]


def prepared(wanted: Iterable[Request], arch: str) -> list[Prepared]:
    """Choose and compile for calls, side by side, but those whose result has no elements."""
    chosen = []
    for request in wanted:
        launches = _launches(request)
        if launches:
            chosen.append((request, launches))

    def compiled(request: Request, launches: Launches) -> Prepared:
        collector: Any = Collector(arch)
        for laid, choice in launches:
            make_ready(collector, laid.question, choice, Workspaces(collector), laid.after)
        return Prepared(request, launches, collector.kernels)

    with ThreadPoolExecutor() as pool:
        return [each.result() for each in [pool.submit(compiled, *each) for each in chosen]]


def _launches(request: Request) -> Launches:
    """Nothing where the result has no elements."""
    every = [each for each in laid_out(request) if not each.empty]
    return tuple((each, answer(each.question, request.options.plan)) for each in every)


def _loaded(request: Request) -> Warmed | None:
    before = compiles().compiled
    choice = made_ready(request).choice
    cached = compiles().compiled == before
    return None if choice is None else _warmed(request, _launches(request), cached, True)


def _warmed(request: Request, launches: Launches, cached: bool, loaded: bool) -> Warmed:
    kernels: list[str] = []
    for number, (laid, choice) in enumerate(launches):
        sums = () if laid.after is None else laid.after.sums
        own = [*("pack" for _ in choice.packs), kernel_of(choice.plan).path.stem, *("sum" for _ in sums)]
        kernels += [name for name in own if not number or name not in kernels]
    first = launches[0][1]
    return Warmed(words(request), tuple(kernels), first.plan.to_dict(), first.source, cached, loaded)


def words(request: Request) -> str:
    """A call for people."""
    a, b = request.a, request.b
    text = f"a {a.shape} {a.dtype} @ b {b.shape} = out {request.shape} {request.out_dtypes[0]}"
    return text if request.after is None else f"{text}, with what follows it"
