"""``shoal train``: one run of the protocol, in its own folder."""

import argparse
import hashlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from ..catalogue import AVERAGES, title_of
from ..files import TENSOR_BYTES, read_bytes
from ..report.screen import open_console, plain, print_json, print_lines
from ..results.records import Record, RunResult, timing_of
from ..training.watcher import Progress, Watcher
from .extras import for_images, require
from .loading import decode_with_progress, load_and_report, report_resizing
from .notes import add_quiet, note, say
from .options import add_run_options, averages_of, device, settings
from .progress import RunProgressBar, run_progress
from .terminal import describe_steps, table


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "train",
        help="train one method and test it on domains that it has never seen",
        description="One run of DomainBed's protocol. The same command resumes an interrupted run, "
        "and ends with the same numbers. Under torchrun, several processes share its batches: "
        "torchrun --nproc-per-node 2 -m shoal train …",
        examples="""
            shoal train --dataset colored-mnist --algorithm fishr --test-domain=-90%
            shoal train --dataset pacs --data DIR --test-domain sketch --out out/sketch
            shoal train --dataset photos --algorithm erm --network efficientnet-lite0 --steps 300
            shoal train --dataset pacs --data DIR --algorithm methods.py:Mine --set lr=1e-4 --json
        """,
    )
    add_run_options(parser)
    add_quiet(parser)
    parser.set_defaults(run=_run, after_interrupt="the same command starts again")


def _run(options: argparse.Namespace) -> int:
    board = ["tensorboard"] if options.tensorboard else []
    require("rich", "safetensors", *board, *for_images(options.dataset))
    from .torchrun import process_group

    with process_group(device(options.device)) as on:
        return _train(options, on)


def _train(options: argparse.Namespace, on: Any) -> int:

    from ..catalogue import scale_of, search_name
    from ..distributed import first_rank_first, rank
    from ..networks.registry import check_network
    from ..runs.execute import execute
    from ..runs.folder import RunFolder, open_run_folder
    from ..runs.machine import Machine, be_deterministic, choose_step
    from ..runs.run import Run
    from ..runs.start import check_start
    from ..sweeps.plan import check_classes
    from ..training.step import step_kind
    from .methods import name_of, with_settings

    if options.deterministic:
        be_deterministic()
    method, given = with_settings(options.algorithm)
    check_start(options.start, method)
    dataset = load_and_report(options.dataset, options.data, options.trial)
    report_resizing(dataset, options.network)
    check_classes(dataset)
    dataset.without(options.test_domain)  # raises for an unknown one
    scale = scale_of(dataset.name)
    hparams = _hparams(method, search_name(dataset.name), options, given)
    protocol, weights = _protocol(options, dataset, scale)
    run = Run(
        dataset=dataset.name,
        fingerprint=dataset.fingerprint,
        algorithm=name_of(options.algorithm, method),
        test_domains=tuple(options.test_domain),
        trial=options.trial,
        draw=options.draw,
        hparams=hparams,
        protocol=protocol,
    )
    out = options.out or Path("out/runs") / _folder_name(run)
    check_network(dataset.input_shape, options.network, weights, here=not RunFolder(out).done)
    machine = Machine(
        device=on,
        step=choose_step(options.step, on, scale, options.network, options.steps),
        place=options.place,
        weights=weights,
        checkpoint_every=options.checkpoint_every,
        predictions=options.predictions,
        log=options.log,
        keep_best=tuple(options.keep_best),
        averages=averages_of(options.average),
        micro_batch=options.micro_batch,
    )
    first = rank() == 0
    kind = step_kind(machine.step, method.capture, on, machine.micro_batch)
    if first and (on.type == "cuda" or kind == "compiled"):
        say(*describe_steps({title_of(run.algorithm): kind}))
    with (
        _advise_after_interrupt(options, RunFolder(out)),
        open_run_folder(out, run) if first else nullcontext(RunFolder(out)) as folder,
    ):
        with first_rank_first():
            done = folder.done
            cache = None if done else decode_with_progress(dataset, options.cache)
        if not first:
            execute(run, method, dataset, cache, folder, machine)
            return 0
        board = Board(out / "tensorboard") if options.tensorboard else None
        title = f"{title_of(run.algorithm)} on {run.dataset}"
        with nullcontext() if done else run_progress(title) as bar:
            watcher = TrainWatcher(bar, board)
            result = execute(
                run,
                method,
                dataset=dataset,
                cache=cache,
                folder=folder,
                machine=machine,
                watcher=watcher,
            )
    if options.json:
        print_json(result.records[-1].to_json())
    else:
        show_result(result, run, out, trained=not done)
    return 0


@contextmanager
def _advise_after_interrupt(options: argparse.Namespace, folder: Any) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        if any(folder.checkpoints.glob("step-*")):
            options.after_interrupt = "the same command resumes from its checkpoint"
        raise


def _hparams(method: Any, scale: str, options: argparse.Namespace, given: Any) -> dict[str, Any]:
    from ..algorithms.hparams import draw, own_names, search_settings, values_for_run

    given = search_settings(method.Hparams, scale, options.search) | given
    given |= own_names(method.Hparams, settings(options.set))
    return values_for_run(draw(method.Hparams, scale, options.trial, options.draw, given))


def _protocol(options: argparse.Namespace, dataset: Any, scale: str) -> tuple[Any, Any]:
    """Return the protocol, and the initial weights on this machine."""
    from ..catalogue import RECORD_EVERY
    from ..networks.registry import DRAWN
    from ..runs.run import Protocol
    from ..sweeps.plan import HEAD

    network = options.network
    if dataset.kind == "vectors":
        network = network or HEAD
    pretrained = not dataset.in_memory and options.network not in DRAWN
    weights, named = _weights(options.weights, pretrained)
    protocol = Protocol(
        steps=options.steps,
        record_every=options.record_every or RECORD_EVERY[scale],
        holdout=options.holdout,
        network=network,
        weights=named,
        precision=options.precision,
        images="exact" if options.exact else "cached",
        augment=not options.no_augment,
        balanced=options.balanced,
        frozen_statistics=not options.train_batch_norm,
        optimiser=options.optimiser,
        schedule=options.schedule,
        clip=options.clip,
        evaluate=options.evaluate,
        start=options.start,
    )
    return protocol, weights


def _weights(asked: str | None, pretrained: bool) -> tuple[str | Path | None, str | None]:
    """Return the initial weights on this machine, and their name in a run.

    Args:
        pretrained: whether weights of ImageNet are the default.
    """
    if asked is None or asked == "none":
        by_default = "imagenet" if pretrained and asked is None else None
        return by_default, by_default
    if asked != "imagenet" and Path(asked).is_file():
        return Path(asked), hashlib.sha256(read_bytes(asked, TENSOR_BYTES)).hexdigest()
    if Path(asked).suffix:
        raise ValueError(f"--weights: there is no file {asked}; write imagenet, none or a file")
    return asked, asked


def _folder_name(run: Any) -> str:
    tests = "+".join(run.test_domains) or "all"
    name = f"{run.dataset}-{run.algorithm}-{tests}-t{run.trial}-d{run.draw}"
    safe = "".join(c if c.isalnum() or c in "+-_.%" else "_" for c in name)
    return f"{safe[:60]}-{run.identity[:8]}"  # names are limited to 255 bytes


def show_result(result: RunResult, run: Any, out: Path, trained: bool) -> None:
    """Print the accuracies of the last record, and the folder of the run.

    Args:
        trained: whether the run was trained just now.
    """

    from ..results.averages import average_folder
    from ..runs.best_weights import KEPT_MODELS

    record = result.records[-1]
    screen = open_console()
    title = f"{title_of(run.algorithm)} on {run.dataset}, after {record.step + 1} updates"
    screen.print(accuracies(record, run, title))
    took = timing_of(result) if trained else None
    if took is None:
        print_lines("This run was already done.")
    else:
        print_lines(
            f"{took.updates} updates in {took.updating:.1f} s, evaluations {took.evaluating:.1f} s,"
            f" preparation {took.preparing:.1f} s"
        )
    print_lines(f"Records, model and card: {out}")
    averages = [at for name in AVERAGES if (at := average_folder(out, name)).is_dir()]
    if averages:
        print_lines(f"Models of averages: {', '.join(map(str, averages))}")
    for folder in (out, *averages):
        for kept in sorted((folder / KEPT_MODELS).glob("step-*")):
            print_lines(f"Weights that a rule can choose: {kept}")


def accuracies(record: Any, run: Any, title: str) -> Any:
    """Return accuracies and calibration errors of a record as a table, a domain in each row."""

    shown = table(title, "Accuracy in %, and expected calibration error; –: not evaluated.")
    shown.add_column("Domain")
    out = 100 * run.protocol.holdout
    heads = (f"kept {100 - out:g} %", f"held out {out:g} %", "error kept", "error held out")
    for head in heads:
        shown.add_column(head, justify="right")
    for domain, found in record.accuracy.items():
        name = plain(domain, style="bold" if domain in run.test_domains else "")
        if domain in run.test_domains:
            name.append(" (test)")
        errors = record.calibration_error[domain]
        cells = [_percent(found.get(split)) for split in ("kept", "held_out")]
        cells += [_error(errors.get(split)) for split in ("kept", "held_out")]
        shown.add_row(name, *cells)
    return shown


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _error(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


class TrainWatcher(Watcher):
    """Shows progress and notes on stderr, and draws records in TensorBoard."""

    def __init__(self, bar: RunProgressBar | None, board: "Board | None") -> None:
        self._bar, self._board = bar, board

    def progress(self, progress: Progress) -> None:
        if self._bar is not None:
            self._bar.show(progress)

    def records(self, records: Sequence[Record]) -> None:
        if self._board is not None:
            self._board.draw(records)

    def note(self, line: str) -> None:
        note(line)


class Board:
    """Curves in TensorBoard; ``draw`` adds the records that are new."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        shutil.rmtree(folder, ignore_errors=True)  # the first call brings all records
        self._writer: Any = SummaryWriter(str(folder))
        self._seen = 0

    def draw(self, records: Sequence[Record]) -> None:
        for record in records[self._seen :]:
            for name, value in record.terms.items():
                self._writer.add_scalar(f"terms/{name}", value, record.step)
            for name, value in record.gaps.items():
                self._writer.add_scalar(f"gaps/{name}", value, record.step)
            for domain, value in record.extra.get("cosine", {}).items():
                self._writer.add_scalar(f"cosine/{domain}", value, record.step)
            both = {"accuracy": record.accuracy, "calibration_error": record.calibration_error}
            for kind, by_domain in both.items():
                for domain, splits in by_domain.items():
                    for split, value in splits.items():
                        self._writer.add_scalar(f"{kind}/{domain}/{split}", value, record.step)
        self._seen = len(records)
        self._writer.flush()
