"""``tilewright tune``: the planner's first candidates measured, the winners kept; and what is kept, to and fro."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import output
from tilewright.cli.options import ROW_ROW, DTypeName, Json, LayoutOption, whole_option
from tilewright.errors import TilewrightError, UsageError

if TYPE_CHECKING:
    from tilewright.problem import Problem
    from tilewright.tune.rows import Row
    from tilewright.tune.session import Tuned
    from tilewright.tune.store import Store

SCHEMA = "tilewright.tune/1"
EVERYTHING = "all"


def tune(
    shapes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SHAPES", help="4096x4096x4096 or 8,4096,4096 (M, N, K), or files: a shape a line, or JSON."
        ),
    ] = None,
    dtype: Annotated[DTypeName, typer.Option("--dtype", help="Element type of A, B and C.")] = "bf16",
    layout: LayoutOption = ROW_ROW,
    top: Annotated[int, whole_option("--top", help="Candidates of the planner to measure.")] = 4,
    limit_s: Annotated[
        float, typer.Option("--limit-s", min=0.1, help="Seconds after which a candidate is taken to hang.")
    ] = 30.0,
    again: Annotated[bool, typer.Option("--again", help="Measure shapes that have a winner already, too.")] = False,
    calibration: Annotated[
        Path | None, typer.Option("--calibration", help="Constants of a GPU, from `tilewright calibrate --out FILE`.")
    ] = None,
    db: Annotated[
        Path | None, typer.Option("--db", help="The database of winners; that of the cache folder when left out.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show what is in the database.")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Remove the winners of SHAPES, on whatever GPU; `all` removes every one.")
    ] = False,
    export: Annotated[
        Path | None, typer.Option("--export", help="Write the winners to a table to ship (JSON).")
    ] = None,
    import_: Annotated[Path | None, typer.Option("--import", help="Add the winners of such a table.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Let --import replace what was measured here.")
    ] = False,
    json: Json = False,
) -> None:
    """Measure the planner's first candidates of each shape on this GPU and keep the winners.

    Within the noise the planner's order wins. Only measuring needs a GPU: --list, --forget, --export and --import work
    everywhere.
    """
    from tilewright.tune.store import Store

    if db is not None and not db.absolute().parent.is_dir():
        raise UsageError(f"--db {db} cannot be written: there is no folder {db.absolute().parent}")
    store, words = Store(db), shapes or []
    asked = {"--list": list_, "--forget": forget, "--export": export is not None, "--import": import_ is not None}
    chosen = [name for name, on in asked.items() if on]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} are different things to do: give one of them")
    if overwrite and import_ is None:
        raise UsageError("--overwrite says what --import does; there is none")
    if chosen and words and not forget:
        raise UsageError(f"{chosen[0]} is about all winners, and SHAPES are given: leave out one of the two")
    if list_:
        _list(store, json)
    elif forget:
        _forget(store, words, dtype, layout, json)
    elif export is not None:
        _export(store, export, json)
    elif import_ is not None:
        _import(store, import_, overwrite, json)
    else:
        _tune(store, words, dtype, layout, top, {"limit_s": limit_s, "again": again}, calibration, json)


def _tune(
    store: Store,
    words: Sequence[str],
    dtype: str,
    layout: Any,
    top: int,
    options: dict[str, Any],
    calibration: Path | None,
    json: bool,
) -> None:
    from tilewright.planner.calibration import Calibration
    from tilewright.tune import session
    from tilewright.tune.shapes import POSSIBLE, problems_of

    if not words:
        raise UsageError(f"SHAPES are missing: {POSSIBLE}; or --list, --forget, --export FILE, --import FILE")
    if top < 1:
        raise UsageError(f"--top is {top}; at least 1 candidate is measured")
    problems = problems_of(words, dtype, layout)
    if not problems:
        raise UsageError(f"{', '.join(words)} has no shapes")
    constants = None if calibration is None else Calibration.load(calibration)
    with output.progress() as report:
        found = session.tune(problems, store, report, top=top, calibration=constants, **options)
    if json:
        errors = [{"problem": problem.to_dict(), "error": error} for problem, error in found.errors.items()]
        known = [problem in found.known for problem in found.rows]
        output.print_json(_document(store, list(found.rows.values()), known=known, errors=errors))
    else:
        _print(found)
    if not store.lasting:
        output.say("what was measured is gone when this ends: --db FILE keeps it")
    _report(found)


def _print(found: Tuned[Problem]) -> None:
    from tilewright.report.tune_table import lost_list, place, tuned_table

    rows, console = list(found.rows.values()), output.stdout()
    if not rows:
        return
    console.print(place(rows[0].where))
    console.print(tuned_table(rows, (found.rows[problem] for problem in found.known)))
    for part in lost_list(rows):
        console.print(part)
    measured = len(rows) - len(found.known)
    output.say(
        f"{measured} measured, {len(found.known)} known before; --again measures those too, --json has all times"
    )


def _report(found: Tuned[Problem]) -> None:
    """Say what went wrong, and end with 1 where something did."""
    for problem, error in found.errors.items():
        output.say_error(f"{problem}: {error}")
    for row in found.rows.values():
        for each in row.wrong:
            output.say_error(f"{row.what}: {each.label} computes wrong results: {each.reason}")
        if row.best is None:
            output.say_error(f"{row.what}: no candidate could be timed")
    if not found.ok:
        raise typer.Exit(TilewrightError.exit_code)


def _list(store: Store, json: bool) -> None:
    rows = store.rows()
    if json:
        output.print_json(_document(store, rows))
        return
    from tilewright.report.tune_table import listed

    console = output.stdout()
    for part in listed(rows, _known_gpus(rows)):
        console.print(part)
    output.say(f"{len(rows)} shapes in {store.path}")


def _forget(store: Store, words: Sequence[str], dtype: str, layout: Any, json: bool) -> None:
    from tilewright.tune import lookup
    from tilewright.tune.key import What
    from tilewright.tune.shapes import problems_of

    if not words:
        raise UsageError(f"--forget needs SHAPES, or the word {EVERYTHING}")
    kinds = None if list(words) == [EVERYTHING] else list(map(What.of, problems_of(words, dtype, layout)))
    count = store.forget(kinds)
    lookup.forget()
    _say(store, {"forgotten": count}, f"{count} winners forgotten", json)


def _export(store: Store, path: Path, json: bool) -> None:
    from tilewright.tune.rows import write_table

    rows = store.rows()
    write_table(path, rows)
    _say(store, {"exported": len(rows), "file": str(path)}, f"{len(rows)} winners written to {path}", json)


def _import(store: Store, path: Path, overwrite: bool, json: bool) -> None:
    from dataclasses import replace

    from tilewright.tune import lookup
    from tilewright.tune.rows import read_table

    rows = [replace(row, origin="imported") for row in read_table(path)]
    added = store.add_imported(rows, overwrite=overwrite)
    lookup.forget()
    unknown = sorted(name for name, known in _known_gpus(rows).items() if not known)
    said = f"{added} of {len(rows)} winners imported" + ("; the others are known here already" * (added < len(rows)))
    if unknown:
        said += f"; those of {', '.join(unknown)}, which tilewright does not know, serve on such a GPU alone"
    _say(store, {"imported": added, "of": len(rows), "unknown_gpus": unknown}, said, json)


def _known_gpus(rows: Sequence[Row]) -> dict[str, bool]:
    """The GPUs of rows by name, and whether tilewright knows each."""
    from tilewright.backends.cuda import gpu_key

    return {name: gpu_key(name) is not None for name in sorted({row.where.gpu for row in rows})}


def _document(store: Store, rows: Sequence[Row], **more: Any) -> dict[str, Any]:
    return {"schema": SCHEMA, "db": str(store.path), "rows": [row.to_dict() for row in rows], **more}


def _say(store: Store, values: dict[str, Any], said: str, json: bool) -> None:
    if json:
        output.print_json({"schema": SCHEMA, "db": str(store.path), **values})
    else:
        output.say(said)
