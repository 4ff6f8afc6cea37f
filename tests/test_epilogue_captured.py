"""When a function is traced again: whenever something that its trace depends on may have changed, and not otherwise."""

from __future__ import annotations

import math
import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.dtypes import BF16, FP32
from tilewright.epilogue.captured import key_of
from tilewright.epilogue.compose import NUMBER, compose

SCALE = 2.0
module = types.ModuleType("settings_of_a_user")
module.scale = 2.0  # type: ignore[attr-defined]


def helper(x: Any) -> Any:
    return x * SCALE


def made(scale: Any) -> Callable[..., Any]:
    return lambda acc: acc * scale


def composed(fn: Callable[..., Any]) -> Any:
    return compose(fn=fn, out_dtypes=[BF16])


SEEN: dict[str, Callable[[], Callable[..., Any]]] = {
    "numbers": lambda: made(2.0),
    "a library's functions": lambda: lambda acc: np.exp(acc) + tw.gelu(acc * math.pi),
    "a function itself": lambda: tw.relu,
    "a helper": lambda: lambda acc: helper(acc),
    "a module": lambda: lambda acc: acc * module.scale,
    "a module handed to a helper": lambda: lambda acc: of_module(acc, module),
    "an import of what stays": lambda: imports,
    "defaults": lambda: lambda acc, s=3: acc * s,
    "inner functions": lambda: lambda acc: (lambda x: helper(x) + SCALE)(acc),
    "itself": lambda: recursive,
}


def imports(acc: Any) -> Any:
    import math as mathematics

    return acc * mathematics.pi


def imports_more(acc: Any) -> Any:
    import settings_of_a_user as of_a_user  # type: ignore[import-not-found]

    return acc * of_a_user.scale


def of_module(acc: Any, of: Any) -> Any:
    return acc * of.scale


def recursive(acc: Any, depth: int = 3) -> Any:
    return recursive(acc * acc, depth - 1) if depth else acc


@pytest.mark.parametrize("name", SEEN)
def test_a_function_made_again_is_not_traced_again(name: str) -> None:
    assert composed(SEEN[name]()) is composed(SEEN[name]())


def test_what_was_captured_and_has_changed_is_traced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def value(fn: Callable[..., Any]) -> float:
        return float(composed(fn).evaluate(np.ones((1, 1)), {})[0][0, 0])

    assert (value(made(2.0)), value(made(3.0)), value(made(True)), value(made(1))) == (2, 3, 1, 1)
    assert math.copysign(1, value(made(0.0))) == -math.copysign(1, value(made(-0.0)))
    names = ("a helper", "a module", "a module handed to a helper", "inner functions")
    before = [value(SEEN[name]()) for name in names]
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    monkeypatch.setattr(module, "scale", 7.0)
    assert before == [2, 2, 2, 4]
    assert [value(SEEN[name]()) for name in names] == [5, 7, 7, 10]


class Holder:
    scale = 2.0

    def method(self, acc: Any) -> Any:
        return acc * self.scale


def with_attribute(acc: Any) -> Any:
    return acc * with_attribute.scale  # type: ignore[attr-defined]


with_attribute.scale = 2.0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "fn",
    [
        made(Holder()),
        Holder().method,
        made([1.0]),
        with_attribute,
        lambda acc: acc * Holder.scale,
        lambda acc: acc * random.random(),
        lambda acc: acc * np.random.rand(),
        lambda acc: acc * getattr(module, "sca" + "le"),
        lambda acc: acc * globals()["SCALE"],
        lambda acc: acc * module.__dict__["scale"],
        imports_more,
    ],
)
def test_what_cannot_be_seen_has_no_key(fn: Callable[..., Any]) -> None:
    assert key_of(fn) is None


def test_the_key_has_the_arguments_and_dtypes() -> None:
    def fn(acc: Any, x: Any) -> Any:
        return acc * x, acc

    one = compose(fn=fn, args={"x": NUMBER}, out_dtypes=[BF16])
    assert one is compose(fn=fn, args={"x": NUMBER}, out_dtypes=(BF16,))
    assert one is not compose(fn=fn, args={"x": NUMBER}, out_dtypes=[FP32])
    assert one is not compose(alpha=2, fn=fn, args={"x": NUMBER}, out_dtypes=[BF16])
    assert compose(alpha=2, out_dtypes=[BF16]) is compose(alpha=3.0, out_dtypes=[BF16])
