#!/usr/bin/env python3
"""The seam between GPU and host: one kernel source, two include folders that must say the same.

``cuda/gpu/tw`` and ``cuda/host/tw`` hold headers of the same names, and in each the same functions of namespace
``tw`` with the same signatures (qualifiers, parameter names and default values aside; nested namespaces are a side's
own business). Kernels and the portable headers contain no ``asm``, no conditional compilation, no architecture test,
no ``__shared__`` and no foreign template library. Exit 1 names each difference.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# What only the host needs: the entry points of the emulator, and what CUDA itself gives a kernel (threadIdx, ...).
HOST_ONLY = {"abi.cuh", "cuda.cuh"}

FORBIDDEN = {
    r"\b(asm|__asm|__asm__)\b": "inline assembly",
    r"^\s*(#|%:|\?\?=)\s*(if|ifdef|ifndef|elif|else|endif)\b": "conditional compilation",
    r"\b__CUDA_ARCH\w*|\b__CUDACC\w*": "an architecture or compiler test",
    r"\b__shared__\b": "__shared__ (shared memory is one struct: tw::shared<T>())",
    r"\b(\w*_)?mem(cpy|move|set)\b": "a copy of bytes, which the emulator may not see (tw::load, tw::store)",
    r"\b(cute|cutlass|cub|thrust)::": "a foreign template library",
}

_RAW_STRING = r'R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"'
_STRING = r'"(?:\\.|[^"\\\n])*"'
_CHARACTER = r"(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'"  # not the separator in 1'000
_LITERAL = rf"{_RAW_STRING}|{_STRING}|{_CHARACTER}"
_COMMENT_OR_LITERAL = re.compile(rf"//[^\n]*|/\*.*?\*/|(?P<literal>{_LITERAL})", re.DOTALL)
_CONTINUED = re.compile(r"[^\n]*(?:(?<=\\)\n[^\n]*)+")
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", re.MULTILINE)
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|\w+|::|->|\[\[|\]\]|&&|[^\s\w]')
_QUALIFIERS = {
    "__device__", "__host__", "__forceinline__", "__noinline__", "static", "inline", "constexpr", "extern", "noexcept",
}  # fmt: skip
_BUILTIN_TYPES = {
    "void",
    "bool",
    "char",
    "short",
    "int",
    "long",
    "float",
    "double",
    "unsigned",
    "signed",
    "auto",
}
_NOT_A_TYPE_YET = {"const", "volatile", "typename", "struct", "class"}


def without_comments(text: str) -> str:
    """C++ text with each comment a space, and lines joined that are one line to the compiler.

    What looks like a comment in a literal is none. A joined line is followed by as many empty ones, so that the lines
    keep their numbers.
    """
    return _joined(
        _COMMENT_OR_LITERAL.sub(
            lambda match: match[0] if match["literal"] else " " + "\\\n" * match[0].count("\n"), _joined(text)
        )
    )


def _joined(text: str) -> str:
    return _CONTINUED.sub(lambda match: match[0].replace("\\\n", "") + "\n" * match[0].count("\n"), text)


def without_literals(text: str) -> str:
    """Text without comments in which each string and character is empty: what they hold is no code."""
    return re.sub(_LITERAL, '""', without_comments(text), flags=re.DOTALL)


def signatures(text: str, namespace: Sequence[str] = ("tw",)) -> set[str]:
    """The functions that C++ text declares or defines directly in a namespace, normalised for comparison."""
    tokens = _TOKEN.findall(_DIRECTIVE.sub("", without_comments(text)))
    return set(_declarations(tokens, list(namespace)))


def _declarations(tokens: Sequence[str], wanted: list[str]) -> Iterator[str]:
    inside: list[str] = []
    head: list[str] = []
    position = 0
    while position < len(tokens):
        token = tokens[position]
        position += 1
        if token == "}" and inside:
            inside.pop()
            head = []  # a macro used without a semicolon
        elif token == ";":
            if inside == wanted and _is_function(head):
                yield signature(head)
            head = []
        elif token == "{":
            if head[:1] == ["namespace"] or head[:2] == ["inline", "namespace"]:
                inside.append("".join(head[head.index("namespace") + 1 :]))
                head = []
                continue
            if head[:1] == ["extern"] and len(head) == 2:  # extern "C" { ... }: the enclosing namespace goes on
                inside.append('extern "C"')
                head = []
                continue
            position = _after_braces(tokens, position)
            if _is_function(head):
                if inside == wanted:
                    yield signature(head)
                head = []
            # else a struct, enum or initialiser: its head ends at the ';' that follows
        else:
            head.append(token)


def _after_braces(tokens: Sequence[str], position: int) -> int:
    depth = 1
    while depth and position < len(tokens):
        depth += {"{": 1, "}": -1}.get(tokens[position], 0)
        position += 1
    return position


def _is_function(head: Sequence[str]) -> bool:
    """Whether a declaration's tokens are those of a function: a parameter list, and no type, alias or value."""
    rest = _split_template(head)[1]
    if "(" not in rest or rest[0] in {
        "struct",
        "class",
        "union",
        "enum",
        "using",
        "typedef",
        "static_assert",
    }:
        return False
    before = rest[: rest.index("(")]
    return "=" not in before or "operator" in before


def signature(head: Sequence[str]) -> str:
    """One declaration's tokens as text in which only meaning differs."""
    template, rest = _split_template(_without_attributes(head))
    rest = [token for token in rest if token not in _QUALIFIERS]
    opening = rest.index("(") if "operator" not in rest else rest.index("(", rest.index("operator") + 2)
    closing = _closing(rest, opening)
    parameters = [_parameter(p) for p in _split(rest[opening + 1 : closing])]
    trailing = [token for token in rest[closing + 1 :] if token in {"const", "volatile", "&", "&&"}]
    names = {p[-1]: f"${i}" for i, p in enumerate(template) if len(p) > 1}
    kinds = [" ".join(names.get(t, t) for t in p[:-1]) if len(p) > 1 else " ".join(p) for p in template]
    text = " ".join([*rest[:opening], "(", " , ".join(" ".join(p) for p in parameters), ")", *trailing])
    text = re.sub(r"\w+", lambda match: names.get(match[0], match[0]), text)
    return (f"template < {' , '.join(kinds)} > " if head[:1] == ["template"] else "") + text


def _without_attributes(head: Sequence[str]) -> list[str]:
    out: list[str] = []
    skip_to = -1
    for i, token in enumerate(head):
        if i <= skip_to:
            continue
        if token == "[[":
            skip_to = head.index("]]", i)
        elif token in {"__attribute__", "__launch_bounds__", "__align__", "alignas"}:
            skip_to = _closing(head, i + 1)
        else:
            out.append(token)
    return out


def _split_template(head: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """The parameters of ``template <...>``, defaults dropped, and what follows."""
    if not head or head[0] != "template":
        return [], list(head)
    closing = _closing(head, 1, "<", ">")
    return [_without_default(p) for p in _split(head[2:closing])], list(head[closing + 1 :])


def _closing(tokens: Sequence[str], opening: int, left: str = "(", right: str = ")") -> int:
    depth = 0
    for i in range(opening, len(tokens)):
        depth += (tokens[i] == left) - (tokens[i] == right)
        if depth == 0:
            return i
    raise ValueError(f"no {right} closes: {' '.join(tokens)}")


def _split(tokens: Sequence[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token in "(<[{") - (token in ")>]}")
        if token == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts if parts != [[]] else []


def _without_default(tokens: list[str]) -> list[str]:
    return tokens[: tokens.index("=")] if "=" in tokens else tokens


def _parameter(tokens: list[str]) -> list[str]:
    """A parameter's type: the name and the default value dropped."""
    tokens = _without_default(tokens)
    if "(" in tokens:  # float (&d)[64]
        closing = _closing(tokens, tokens.index("("))
        return tokens[: closing - 1] + tokens[closing:] if tokens[closing - 1].isidentifier() else tokens
    end = tokens.index("[") if "[" in tokens else len(tokens)
    name = tokens[end - 1 : end]
    before = [t for t in tokens[: end - 1] if t not in _NOT_A_TYPE_YET]
    if before and name[0].isidentifier() and name[0] not in _BUILTIN_TYPES and before[-1] != "::":
        return tokens[: end - 1] + tokens[end:]
    return tokens


def header_problems(gpu: Path, host: Path) -> list[str]:
    """Headers and functions that stand on one side only."""
    names = {side: {p.name for p in side.glob("*.cuh")} for side in (gpu, host)}
    found = [f"host/tw/{name} has no gpu/tw/{name}" for name in sorted(names[host] - names[gpu] - HOST_ONLY)]
    found += [f"gpu/tw/{name} has no host/tw/{name}" for name in sorted(names[gpu] - names[host])]
    for name in sorted(names[gpu] & names[host]):
        on_gpu, on_host = (signatures((side / name).read_text(encoding="utf-8")) for side in (gpu, host))
        found += [f"{name}: only gpu/tw declares: {text}" for text in sorted(on_gpu - on_host)]
        found += [f"{name}: only host/tw declares: {text}" for text in sorted(on_host - on_gpu)]
    return found


def kernel_problems(files: Sequence[Path]) -> list[str]:
    """What a kernel or a portable header must not contain."""
    return [
        f"{path.parent.name}/{path.name}:{number}: {what}: {line.strip()}"
        for path in files
        for number, line in enumerate(without_literals(path.read_text(encoding="utf-8")).splitlines(), start=1)
        for pattern, what in FORBIDDEN.items()
        if re.search(pattern, line)
    ]


def main() -> int:
    """Print each breach of the seam; 1 when there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="the repository (default: this one)")
    cuda = parser.parse_args().root.resolve() / "src/tilewright/cuda"
    kinds = ("rungs/*.cu", "branches/*.cu", "library/*.cu", "probes/*.cu", "tw/*.cuh")
    kernels = sorted(path for kind in kinds for path in cuda.glob(kind))
    headers = sorted((cuda / "gpu/tw").glob("*.cuh"))
    functions = sum(len(signatures(path.read_text(encoding="utf-8"))) for path in headers)
    found = header_problems(cuda / "gpu/tw", cuda / "host/tw") + kernel_problems(kernels)
    if not kernels or not functions:
        found.append(f"{cuda}: no kernels or no functions found, so that nothing was checked")
    for problem in found:
        print(problem, file=sys.stderr)
    print(
        f"seam: {len(headers)} headers with {functions} functions on both sides, "
        f"{len(kernels)} kernel files, {len(found)} problems"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
