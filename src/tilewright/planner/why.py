"""Why one candidate is predicted to beat another: their times term by term, and where each term comes from.

A candidate's time is the sum of its terms, but for those of ``INSIDE``: its main loop already is, wave by wave, the
largest of these. What the terms do not explain is a row of its own, so that the rows that add up give the whole
difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_args

from tilewright.errors import UsageError
from tilewright.planner.candidate import INSIDE, Candidate
from tilewright.planner.family import family_of
from tilewright.planner.planning import Clock, Planning
from tilewright.planner.rank import TIE
from tilewright.planner.reading import build, choice, each_of, flag, read_fields, real, record, text
from tilewright.roofline import amount, held

SCHEMA = "tilewright.why/1"
REST = "rest"
_NOTHING_US = 1e-6  # a picosecond: what sums of floats differ by, and no clock shows


@dataclass(frozen=True)
class Term:
    """One term of both: microseconds, whether it adds to the time or lies inside the main loop, and what makes it."""

    name: str
    a_us: float
    b_us: float
    adds: bool
    a_from: str
    b_from: str

    @property
    def difference_us(self) -> float:
        """How much more of it ``b`` has."""
        return self.b_us - self.a_us

    @property
    def source(self) -> str:
        """What makes it in both, in one text."""
        return self.a_from if self.a_from == self.b_from else f"A: {self.a_from}; B: {self.b_from}"


@dataclass(frozen=True)
class Why:
    """Two candidates side by side. The ``terms`` that add up come to the predicted time in the state of ``clock``."""

    a: Candidate
    b: Candidate
    clock: Clock
    terms: tuple[Term, ...]

    @property
    def difference_us(self) -> float:
        """How much longer ``b`` takes."""
        return time_us(self.b, self.clock) - time_us(self.a, self.clock)

    def __str__(self) -> str:
        """The answer in one sentence: which is faster, by how much, and what decides."""
        more = self.difference_us
        better, worse = (self.a, self.b) if more >= 0 else (self.b, self.a)
        if self.a == self.b:
            return f"A and B are the same candidate, {self.a.label}"
        if abs(more) < _NOTHING_US:
            return f"{better.label} and {worse.label} take the same time; the tie rule decides"
        share = abs(more) / time_us(worse, self.clock)
        tie = "; so near each other the tie rule may rank either first" if share < TIE else ""
        told = ", ".join(self._told())
        return f"{better.label} takes {abs(more):,.2f} us ({share:.1%}) less than {worse.label}: {told}{tie}"

    def _told(self) -> Iterator[str]:
        """The terms that add up, the one that decides most first, as what the faster one gains or loses by them."""
        sign = 1 if self.difference_us >= 0 else -1
        changes = [(sign * term.difference_us, term) for term in self.terms if term.adds]
        for gain, term in sorted(changes, key=lambda change: -abs(change[0])):
            if abs(gain) >= max(_NOTHING_US, abs(self.difference_us) / 100):
                yield f"{words(term.name)} {-gain:+,.2f} us"

    def _repr_html_(self) -> str:
        from tilewright.report.plan_html import why_html

        return why_html(self)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values under the names of the fields, the sentence and the difference."""
        return {
            "schema": SCHEMA,
            "says": str(self),
            "clock": self.clock,
            "difference_us": self.difference_us,
            "terms": [{**asdict(term), "difference_us": term.difference_us} for term in self.terms],
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Why:
        """The inverse of ``to_dict``. Raises ``UsageError`` for what is none, naming the field."""
        numbers = dict.fromkeys(("a_us", "b_us"), real)
        readers = {"name": text, **numbers, "adds": flag, **dict.fromkeys(("a_from", "b_from"), text)}

        def term(value: Any) -> Term:
            given = {key: each for key, each in value.items() if key != "difference_us"}
            return record("term", Term, readers)(given)  # type: ignore[no-any-return]

        sides = dict.fromkeys(("a", "b"), Candidate.from_dict)
        found = read_fields(
            "comparison",
            values,
            {"clock": choice(*get_args(Clock)), "terms": each_of(term), **sides},
            {"schema", "says", "difference_us"},
        )
        return build("comparison", cls, {**found, "terms": tuple(found.get("terms", ()))})


def why(a: Candidate, b: Candidate, *, clock: Clock = "sustained") -> Why:
    """Compare two candidates term by term in the state of ``clock``, the one whose times ranked them.

    Raises ``UsageError`` for a candidate that was rejected, which has no times.
    """
    terms = [_term(name, a, b) for name in dict.fromkeys([*a.terms_us, *b.terms_us])]
    rest = [time_us(each, clock) - sum(_adding(each)) for each in (a, b)]
    if max(map(abs, rest)) > max(time_us(each, clock) for each in (a, b)) * 1e-6:
        terms.append(Term(REST, rest[0], rest[1], True, *(_NOT_TERMS for _ in rest)))
    return Why(a, b, clock, tuple(terms))


def time_us(candidate: Candidate, clock: Clock) -> float:
    """The predicted time in a state of the clock. Raises ``UsageError`` for a candidate that was rejected."""
    if candidate.predicted_us is None:
        raise UsageError(f"{candidate.label} has no predicted time: {candidate.rejected}")
    return float(getattr(candidate.predicted_us, clock))


def find(planning: Planning, name: str) -> Candidate:
    """The candidate that a person means: a rank from 1, a label, or words of labels (``128x256 pingpong``), the first.

    Raises ``UsageError`` where there is none, or only rejected ones.
    """
    wanted = name.strip().lower().removeprefix("#").split()
    if len(wanted) == 1 and wanted[0].isdecimal() and wanted[0].isascii():
        rank = int(wanted[0])
        if 1 <= rank <= len(planning.ranked):
            return planning.ranked[rank - 1]
    elif wanted:
        meant = [candidate for candidate in planning.ranked if _is_meant(candidate, wanted)]
        for candidate in meant:
            if candidate.label.lower().split() == wanted:
                return candidate
        if meant:
            return meant[0]
        for candidate in planning.rejected:
            if _is_meant(candidate, wanted):
                raise UsageError(f"{candidate.label} has no predicted time: {candidate.rejected}")
    raise UsageError(
        f"{name!r} names no candidate: a rank from 1 to {len(planning.ranked)} is possible, or words of a label "
        f"such as {planning.pick.label!r}"
    )


def words(term: str) -> str:
    """A term's name for people."""
    return {"l2": "L2", "hbm": "HBM"}.get(term, term.replace("_", " "))


def _is_meant(candidate: Candidate, wanted: list[str]) -> bool:
    label = candidate.label.lower().split()
    known = {*label, candidate.family.lower(), label[0].rpartition("x")[0]}
    return all(word in known for word in wanted)


def _adding(candidate: Candidate) -> list[float]:
    return [value for name, value in candidate.terms_us.items() if name not in INSIDE]


def _term(name: str, a: Candidate, b: Candidate) -> Term:
    own, others = (each.terms_us.get(name, 0.0) for each in (a, b))
    a_from, b_from = (_source(name, each) for each in (a, b))
    if a_from == b_from and a.family != b.family and own != others:  # then it is the kernel that makes the difference
        a_from, b_from = (f"{said}, {each.family}" for said, each in ((a_from, a), (b_from, b)))
    return Term(name, own, others, name not in INSIDE, a_from, b_from)


def _source(name: str, candidate: Candidate) -> str:
    said, family = _SOURCES.get(name, _family)(candidate), family_of(candidate)
    return said if family is None else family.source(name, candidate, said)


def _family(candidate: Candidate) -> str:
    return candidate.family


def _binds(candidate: Candidate) -> str:
    inside = {name: candidate.terms_us[name] for name in INSIDE if name in candidate.terms_us}
    return f"mostly {words(max(inside, key=inside.__getitem__))}" if inside else ""


def _cluster(candidate: Candidate) -> str:
    blocks, along_k = candidate.cluster[0] * candidate.cluster[1], getattr(candidate.plan, "cluster_k", 1)
    if blocks == along_k == 1:
        return "no clusters"
    return f"clusters of {blocks * along_k}{f', {along_k} along K' if along_k > 1 else ''}"


def waves_said(candidate: Candidate) -> str:
    """The tiles of a candidate, its waves, and how much of the places they use."""
    waves = f"{candidate.waves:,} wave{'s' if candidate.waves != 1 else ''}"
    tiles = f"{candidate.tiles:,} tile{'s' if candidate.tiles != 1 else ''}"
    cut = " (halves in a last one at most half full)" if candidate.tail == "half" else ""
    return f"{tiles} in {waves}{cut}, {candidate.wave_efficiency:.1%} of the places busy"


def _traffic(candidate: Candidate) -> str:
    saved = " after multicast" if candidate.operand_traffic_bytes_multicast < candidate.operand_traffic_bytes else ""
    return f"{amount(candidate.operand_traffic_bytes_multicast)} of operands{saved}"


def _epilogue(candidate: Candidate) -> str:
    bm, bn, _ = candidate.tile
    hidden = ", behind another tile's K loop" if candidate.schedule == "pingpong" else ""
    return f"{candidate.waves:,} wave{'s' if candidate.waves != 1 else ''} of tiles of {bm}x{bn}{hidden}"


_NOT_TERMS = "what is not in these terms"
_SOURCES: dict[str, Callable[[Candidate], str]] = {
    "launch": _cluster,
    "first_load": lambda candidate: f"a stage of {held(candidate.stage_bytes)}",
    "tensor": waves_said,
    "shared_port": lambda candidate: f"tiles of {candidate.tile[0]}x{candidate.tile[1]}",
    "l2": _traffic,
    "hbm": lambda candidate: f"super-rows of {candidate.raster}",
    "issue": lambda candidate: f"K steps of {candidate.tile[2]}, {candidate.stages} stages",
    "main_loop": _binds,
    "epilogue": _epilogue,
}
