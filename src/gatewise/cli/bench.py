"""`gatewise bench`: gatewise beside other libraries on this machine."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from gatewise.benchmark.measure import Report, Settings

app = typer.Typer(help="Measure gatewise beside other libraries on this machine.", no_args_is_help=True)


@app.command("cpu")
def cpu(
    shapes: Annotated[
        str | None, typer.Option(help="Shapes as 'T,N,I,H;T,N,I,H,bi;…' (bi: both directions).", metavar="SHAPES")
    ] = None,
    cells: Annotated[str, typer.Option(help="Some of lstm,gru,single.")] = "lstm,gru,single",
    modes: Annotated[str, typer.Option(help="Some of forward,training.")] = "forward,training",
    threads: Annotated[int | None, typer.Option(help="Threads for every library.", min=1, show_default="all CPUs")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Four shapes and short timings: a first look.")] = False,
    standard: Annotated[bool, typer.Option(help="The table of shapes.")] = True,
    variants: Annotated[
        bool | None, typer.Option(help="The table of variants.", show_default="on without --quick and --shapes")
    ] = None,
    linearity: Annotated[bool, typer.Option("--linearity", help="Also time per step from T 100 to 10,000.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Also peak memory beyond arguments and results.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report here.", dir_okay=False)] = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", help="Draw the shapes here (.png, .svg, .pdf).", dir_okay=False)
    ] = None,
) -> None:
    """Time gatewise, PyTorch and ONNX Runtime by turns on the CPU: forward, and training step with all gradients.

    Close other programs first. Ctrl-C stops and shows what has been measured so far.

    The exit status is 1 if a rival computed something else than gatewise did.
    """
    from gatewise.benchmark import shapes as known
    from gatewise.benchmark import timing
    from gatewise.benchmark.measure import Settings

    if variants is None:
        variants = not quick and shapes is None
    _check_files(json_file, plot_file)
    try:
        settings = Settings(
            threads=threads or timing.available_cpus(),
            shapes=known.parse_shapes(shapes) if shapes is not None else known.QUICK if quick else known.STANDARD,
            cells=known.parse_names("cells", cells, known.CELLS),
            modes=known.parse_names("modes", modes, known.MODES),
            standard=standard,
            variants=variants,
            linearity=linearity,
            memory=memory,
            effort=timing.QUICK if quick else timing.FULL,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    report, stopped = _measure(settings)
    _show(report, json_file, plot_file)
    if stopped:
        raise typer.Exit(130)
    if report["disagreements"]:
        raise typer.Exit(1)


@app.command("cuda")
def cuda(
    shapes: Annotated[
        str | None, typer.Option(help="Shapes of both tables: 'T,N,I,H;T,N,I,H,bi;…' (bi: two directions).", metavar="SHAPES")
    ] = None,
    cells: Annotated[str, typer.Option(help="Some of lstm,gru,gru_before.")] = "lstm,gru",
    dtypes: Annotated[str, typer.Option(help="Some of bfloat16,float16,float32.")] = "bfloat16,float16,float32",
    quick: Annotated[bool, typer.Option("--quick", help="Three shapes: a first look.")] = False,
    family: Annotated[
        str | None, typer.Option(help="Kernels of this family where they can run, instead of the planner's choice.")
    ] = None,
    standard: Annotated[bool, typer.Option(help="The table of shapes.")] = True,
    variants: Annotated[bool, typer.Option(help="The table of variants, in the first dtype, beside a loop in PyTorch.")] = True,
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="The loop through torch.compile, too.")] = True,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report here.", dir_okay=False)] = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", help="Draw the shapes here (.png, .svg, .pdf).", dir_okay=False)
    ] = None,
) -> None:
    """Time gatewise and PyTorch's cuDNN by turns on the GPU: forward, and training step with all gradients.

    Then variants that cuDNN leaves out, beside a loop in PyTorch; and what a small call costs the host.
    """
    from gatewise.benchmark.shapes import parse_names, parse_shapes
    from gatewise.engines import ENGINES

    _check_files(json_file, plot_file)
    reason = ENGINES["cuda"].unavailable()
    if reason is not None:
        typer.echo(f"gatewise bench: {reason}", err=True)
        raise typer.Exit(2)
    from gatewise.benchmark import cuda as bench
    from gatewise.benchmark import cuda_plot, cuda_variants
    from gatewise.engines.cuda.planner import FAMILIES, wish

    sizes, with_options = (bench.QUICK, cuda_variants.QUICK) if quick else (bench.SHAPES, cuda_variants.SHAPES)
    try:
        chosen = parse_names("cells", cells, bench.CELLS), parse_names("dtypes", dtypes, bench.DTYPES)
        if family is not None and family not in FAMILIES:
            raise ValueError(f"family must be one of {', '.join(FAMILIES)}, got {family!r}")
        if shapes is not None:
            with_options = parse_shapes(shapes)
            sizes = tuple((each.T, each.N, each.I, each.H, each.D) for each in with_options)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    report: dict[str, Any] = {"machine": bench.machine(), "rows": [], "variants": []}
    if standard:
        with wish(family):
            for row in bench.measure(*chosen, sizes):
                report["rows"].append(row)
                typer.echo(bench.markdown([row]).splitlines()[2], err=True)  # to be seen meanwhile; the table is the result
        typer.echo(bench.markdown(report["rows"]))
    if variants:
        report["variants"] = list(cuda_variants.measure(chosen[1][:1], with_options, compiled))
        typer.echo(cuda_variants.markdown(report["variants"]))
    report["host_us_per_call"] = bench.host_microseconds()
    typer.echo(f"a small forward call costs the host {report['host_us_per_call']:.1f} us")
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if plot_file is not None and report["rows"]:
        cuda_plot.draw(report["rows"], plot_file, report["machine"]["gpu"])


@app.command("table")
def table(file: Annotated[Path, typer.Argument(help="A report written by --json.", exists=True, dir_okay=False)]) -> None:
    """Print a report as Markdown tables, for a document."""
    from gatewise.benchmark.tables import markdown

    typer.echo(markdown(_read(file)), nl=False)


@app.command("plot")
def plot(
    file: Annotated[Path, typer.Argument(help="A report written by --json.", exists=True, dir_okay=False)],
    picture: Annotated[Path, typer.Argument(help="The picture to write (.png, .svg, .pdf).", dir_okay=False)],
) -> None:
    """Draw a report as one picture."""
    from gatewise.benchmark.plot import draw

    _check_files(None, picture)
    try:
        draw(_read(file), picture)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _measure(settings: Settings) -> tuple[Report, bool]:
    """The report, and whether Ctrl-C or SIGTERM stopped it before its end."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from gatewise.benchmark import measure

    try:
        report = measure.new_report(settings)
    except RuntimeError as error:
        typer.echo(f"gatewise bench: {error}", err=True)
        raise typer.Exit(2) from error
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    # drawing costs CPU time that the libraries under measurement should have: once per case is enough
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as progress:
        task = progress.add_task("", total=len(measure.cases(settings, report)))
        begun = 0

        def on_case(label: str) -> None:
            nonlocal begun
            progress.update(task, description=label, completed=begun, refresh=True)
            begun += 1

        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
        try:
            measure.run(settings, report, on_case)
        except KeyboardInterrupt:
            report["notes"].append(f"stopped after {begun - 1} of {progress.tasks[task].total:.0f} measurements")
            return report, True
        finally:
            signal.signal(signal.SIGTERM, before)
        progress.update(task, description="done", completed=begun, refresh=True)
    return report, False


def _show(report: Report, json_file: Path | None, plot_file: Path | None) -> None:
    from rich.console import Console

    from gatewise.benchmark import tables

    tables.print_report(report, Console())
    if json_file is not None:
        written = {**report, "summary": tables.summary(report)}
        json_file.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if plot_file is not None and report["standard"]:
        from gatewise.benchmark.plot import draw

        draw(report, plot_file)


def _read(file: Path) -> Report:
    from gatewise.benchmark.tables import check

    try:
        return check(json.loads(file.read_text(encoding="utf-8")))
    except ValueError as error:
        raise typer.BadParameter(f"{file}: {error}") from error


def _check_files(json_file: Path | None, plot_file: Path | None) -> None:
    """Refuse before measuring what could not be written after it."""
    import importlib.util

    for file in (json_file, plot_file):
        if file is not None and not file.absolute().parent.is_dir():
            raise typer.BadParameter(f"no such folder: {file.parent}")
    if plot_file is not None and importlib.util.find_spec("matplotlib") is None:
        raise typer.BadParameter("drawing needs matplotlib (pip install 'gatewise[plot]')")
    if plot_file is not None and plot_file.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise typer.BadParameter(f"a picture ends in .png, .svg or .pdf, got {plot_file.name}")
