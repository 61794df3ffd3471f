"""The training loop: what it calls, what it remembers, how it stops."""

from __future__ import annotations

import io
import math
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.training import progress
from tapejit.training.fit import scalars

ROOT = Path(__file__).resolve().parent.parent


def run(
    step: Any, data: Any, epochs: int = 1, callbacks: Any = (), **options: Any
) -> Any:
    return tj.fit(step, data, epochs, callbacks, verbose=0, **options)


class Recorder:
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_start(self, history: Any) -> None:
        self.heard.append("start")

    def on_batch_end(self, step: int, logs: dict[str, float]) -> None:
        self.heard.append((step, logs))

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        self.heard.append(("epoch", epoch, logs))

    def on_end(self, history: Any) -> None:
        self.heard.append("end")


# What is called and remembered


def test_batches_that_are_tuples_or_lists_are_unpacked() -> None:
    calls: list[Any] = []
    run(lambda *args: calls.append(args), [(1, 2), [3], {"a": 4}, np.ones(2)])
    assert calls[:3] == [(1, 2), (3,), ({"a": 4},)]
    assert len(calls[3]) == 1


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (0.5, {"loss": 0.5}),
        (tj.asarray(0.5), {"loss": 0.5}),
        (tj.asarray([0.5]), {"loss": 0.5}),
        (tj.Variable(0.5), {"loss": 0.5}),
        (tj.asarray(0.5, dtype=tj.bfloat16), {"loss": 0.5}),
        (np.int64(3), {"loss": 3.0}),
        (True, {"loss": 1.0}),
        ({"a": tj.asarray(1.0), "b": 2}, {"a": 1.0, "b": 2.0}),
        (None, {}),
    ],
)
def test_results_become_named_floats(result: Any, expected: dict[str, float]) -> None:
    found = scalars(result)
    assert found == expected
    assert all(type(value) is float for value in found.values())


@pytest.mark.parametrize(
    "result", [(1.0, 2.0), np.ones(3), "text", 1j, {"a": [1, 2]}, {"a": None}, object()]
)
def test_other_results_are_named(result: Any) -> None:
    with pytest.raises(tj.ArgumentTypeError, match="is a "):
        run(lambda x: result, [1])


def test_the_history_has_the_means_of_each_epoch() -> None:
    values = iter([1.0, 2.0, 6.0, 4.0, 5.0, 9.0])
    history = run(lambda x: {"loss": next(values), "n": 2}, [0, 0, 0], epochs=2)
    assert history == {"loss": [3.0, 6.0], "n": [2.0, 2.0]}
    assert (history.epochs, history.steps, history.batches) == (2, 6, 0)
    assert history.stopped is None


def test_names_may_not_change_within_an_epoch() -> None:
    results = iter([{"a": 1.0}, {"b": 1.0}])
    with pytest.raises(tj.ArgumentError, match="returned b, and a before"):
        run(lambda x: next(results), [0, 0])


def test_validation_runs_after_each_epoch() -> None:
    order: list[str] = []

    def step(x: Any) -> float:
        order.append("step")
        return 1.0

    def validation() -> dict[str, Any]:
        order.append("validation")
        return {"loss": tj.asarray(0.25), "accuracy": 0.5}

    history = run(step, [0, 0], 2, validation=validation)
    assert order == ["step", "step", "validation"] * 2
    assert history["val_loss"] == [0.25, 0.25]
    assert history["val_accuracy"] == [0.5, 0.5]
    assert run(step, [0], validation=lambda: 3)["val_loss"] == [3.0]


def test_callbacks_hear_in_order() -> None:
    recorder = Recorder()
    epochs: list[Any] = []
    run(
        lambda x: x, [1.0, 3.0], 2, [recorder, lambda e, logs: epochs.append((e, logs))]
    )
    first = [(0, {"loss": 1.0}), (1, {"loss": 3.0}), ("epoch", 0, {"loss": 2.0})]
    second = [(2, {"loss": 1.0}), (3, {"loss": 3.0}), ("epoch", 1, {"loss": 2.0})]
    assert recorder.heard == ["start", *first, *second, "end"]
    assert epochs == [(0, {"loss": 2.0}), (1, {"loss": 2.0})]


def test_what_is_no_callback_is_refused_before_the_first_step() -> None:
    calls: list[Any] = []
    with pytest.raises(tj.ArgumentTypeError, match="3 is no callback"):
        run(calls.append, [1], callbacks=[3])
    assert not calls


@pytest.mark.parametrize("answer", [True, "enough"])
def test_a_callback_ends_the_training(answer: Any) -> None:
    late: list[int] = []
    stop = lambda epoch, logs: answer if epoch == 1 else None
    history = run(lambda x: x, [1.0], 9, [stop, lambda epoch, logs: late.append(epoch)])
    assert history.epochs == 2
    assert history.stopped == ("a callback" if answer is True else "enough")
    assert late == [0, 1]  # the others still hear of the epoch


@pytest.mark.parametrize("answer", [None, False, 0, 1, 5, [], object()])
def test_other_answers_mean_nothing(answer: Any) -> None:
    assert run(lambda x: x, [1.0], 3, [lambda e, logs: answer]).epochs == 3


def test_a_callback_ends_the_training_in_the_middle_of_an_epoch() -> None:
    class Stop:
        def on_batch_end(self, step: int, logs: Any) -> str | None:
            return "seen enough" if step == 4 else None

    calls: list[Any] = []
    history = run(lambda x: calls.append(x) or 1.0, [1, 2, 3], 9, [Stop()])
    assert calls == [1, 2, 3, 1, 2]
    assert (history.epochs, history.batches, history.steps) == (1, 2, 5)
    assert history == {"loss": [1.0]}
    assert history.stopped == "seen enough"


def test_data_that_is_used_up_is_an_error_with_a_hint() -> None:
    assert run(lambda x: x, (float(i) for i in range(3))).epochs == 1
    with pytest.raises(tj.ArgumentTypeError, match="epoch 2 of the data") as caught:
        run(lambda x: x, (float(i) for i in range(3)), epochs=2)
    assert "not a generator" in str(caught.value)
    with pytest.raises(tj.ArgumentTypeError, match="epoch 1 of the data"):
        run(lambda x: x, [])


def test_an_error_in_a_step_is_the_users() -> None:
    def step(x: Any) -> None:
        raise ZeroDivisionError("mine")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError, match="mine"):
        run(step, [1])
    assert signal.getsignal(signal.SIGINT) is before


# Going on


def test_a_history_goes_on_to_the_number_of_epochs_in_all() -> None:
    history = run(lambda x: x, [1.0], 2)
    assert run(lambda x: 2 * x, [1.0], 5, history=history) is history
    assert history["loss"] == [1, 1, 2, 2, 2]
    assert run(lambda x: x, [1.0], 5, history=history)["loss"] == [1, 1, 2, 2, 2]


class StopAt:
    def __init__(self, step: int) -> None:
        self.step = step

    def on_batch_end(self, step: int, logs: Any) -> bool:
        return step == self.step


@pytest.mark.parametrize("stop", range(9))
def test_batches_go_on_in_the_middle_of_an_epoch(stop: int) -> None:
    def make() -> Any:
        return tj.data.batches(np.arange(6.0), 2, shuffle=True, seed=0)

    seen: list[list[float]] = []

    def step(x: Any) -> float:
        seen.append(x.tolist())
        return float(x[0] / 3)

    whole = run(step, make(), 4)
    expected, seen[:] = list(seen), []
    data = make()
    history = run(step, data, 4, [StopAt(stop)])
    assert history.stopped == "a callback"
    run(step, data, 4, history=history)
    assert seen == expected
    assert history == whole
    assert history.stopped is None


def test_other_data_starts_the_epoch_over() -> None:
    history = run(lambda x: x, [1.0, 2.0, 6.0], 2, [StopAt(1)])
    run(lambda x: x, [1.0, 2.0, 6.0], 2, history=history)
    assert history == {"loss": [3.0, 3.0]}


def test_a_history_is_restored_from_plain_values_only() -> None:
    with pytest.raises(tj.ArgumentError, match="no state of a History"):
        tj.History().restore({"values": {}})


# Early stopping


def losses(*values: float) -> Any:
    """A step that returns these, one per epoch."""
    given = iter(values)
    return lambda x: next(given)


@pytest.mark.parametrize(
    ("values", "options", "epochs", "best"),
    [
        ([3, 2, 1, 2, 2, 2], {"patience": 2}, 5, 1),
        ([3, 2, 1, 2, 0, 2, 2], {"patience": 2}, 7, 0),
        ([3, 3, 3], {"patience": 1}, 2, 3),
        ([3, 3, 3], {"patience": 0}, 2, 3),
        ([3, 2.95, 2.92, 2.85], {"patience": 2, "min_delta": 0.1}, 3, 3),
        ([math.nan, 3, math.nan, math.nan], {"patience": 2}, 4, 3),
        ([1, 2, 3, 2, 1], {"patience": 2, "mode": "max"}, 5, 3),
        ([-1, -2, -3, -2, -3], {"patience": 2}, 5, -3),
    ],
)
def test_early_stopping(
    values: list[float], options: dict[str, Any], epochs: int, best: float
) -> None:
    stopping = tj.callbacks.EarlyStopping("loss", **options)
    history = run(losses(*values), [0], len(values), [stopping])
    assert history.epochs == epochs
    assert stopping.best == best
    assert "has not improved" in (history.stopped or "")


@pytest.mark.parametrize(
    ("name", "mode"),
    [("val_accuracy", "max"), ("AUC", "max"), ("loss", "min"), ("val_error", "min")],
)
def test_the_name_tells_what_is_better(name: str, mode: str) -> None:
    assert tj.callbacks.EarlyStopping(name).mode == mode


def test_early_stopping_of_something_else_is_named() -> None:
    stopping = tj.callbacks.EarlyStopping()
    with pytest.raises(tj.ArgumentError, match=r"no 'val_loss' to monitor.*has loss"):
        run(lambda x: x, [1.0], 2, [stopping])
    with pytest.raises(tj.ArgumentError, match="mode is"):
        tj.callbacks.EarlyStopping(mode="less")


@pytest.mark.parametrize("epochs", [4, 9])
def test_the_best_values_are_put_back(epochs: int) -> None:
    """Also if training comes to its end before patience does."""
    v, generator = tj.Variable([0.0, 0.0]), tj.random.Generator(0)
    states = []
    values = iter([3.0, 1.0, 2.0, 5.0, 5.0, 5.0])

    def step(x: Any) -> float:
        v.assign_add([1.0, 2.0])
        generator.normal()
        states.append(generator.state.numpy())
        return next(values)

    kept = {"v": v, "generator": generator}
    stopping = tj.callbacks.EarlyStopping("loss", 3, restore_best=kept)
    run(step, [0], epochs, [stopping])
    assert stopping.best_epoch == 1
    assert v.numpy().tolist() == [2, 4]
    np.testing.assert_array_equal(generator.state, states[1])


def test_early_stopping_starts_afresh_and_goes_on_with_a_history(
    tmp_path: Path,
) -> None:
    v = tj.Variable(0.0)
    stopping = tj.callbacks.EarlyStopping("loss", patience=3, restore_best=[v])

    def step(x: Any) -> Any:
        v.assign_add(1.0)
        return tj.abs(v - 3.0)

    history = run(step, [0], 4, [stopping])
    assert stopping.best == 0
    tj.save(tmp_path / "f", v=v, stopping=stopping, history=history)
    assert run(lambda x: 7.0, [0], 2, [stopping]).epochs == 2
    assert stopping.best == 7  # another training
    other = tj.callbacks.EarlyStopping("loss", patience=3, restore_best=[v])
    history = tj.History()
    tj.load(tmp_path / "f", into={"v": v, "stopping": other, "history": history})
    v.assign(4.0)  # as it was before the best was put back
    run(step, [0], 99, [other], history=history)
    assert history["loss"] == [2, 1, 0, 1, 2, 3]
    assert float(v) == 3.0


# Checkpoints while training


def test_checkpoints_are_written_when_due(tmp_path: Path) -> None:
    v = tj.Variable(0.0)
    step = lambda x: v.assign_add(1.0)
    saving = [
        tj.callbacks.Checkpoint(tmp_path / "epoch-{epoch}-{step}", [v]),
        tj.callbacks.Checkpoint(tmp_path / "step-{step}", [v], every=2),
        tj.callbacks.Checkpoint(tmp_path / "last", [v], every=1),
    ]
    run(step, [0, 0, 0], 2, saving)
    names = ["epoch-1-3", "epoch-2-6", "last", "step-2", "step-4", "step-6"]
    assert sorted(os.listdir(tmp_path)) == names
    for name in names:
        expected = 6 if name == "last" else int(name[-1])
        assert tj.load(tmp_path / name)["0"] == expected


@pytest.mark.parametrize("every", [0, -1, "batch", 1.5])
def test_wrong_intervals_are_refused(every: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        tj.callbacks.Checkpoint("f", [], every=every)
    with pytest.raises(tj.ArgumentError, match=r"no \{epoch\} in its name"):
        tj.callbacks.Checkpoint("{epoch}", [], every=3)


# Ctrl-C


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python's own handler, which a process started in the background has not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_the_training_after_the_step() -> None:
    done: list[int] = []

    def step(x: Any) -> float:
        if len(done) == 4:
            signal.raise_signal(signal.SIGINT)
        done.append(x)  # the step is not cut off
        return 1.0

    recorder = Recorder()
    history = run(step, [1, 2, 3], 9, [recorder])
    assert done == [1, 2, 3, 1, 2]
    assert history.stopped == "interrupted"
    assert history == {"loss": [1.0]}
    assert (history.epochs, history.steps) == (1, 5)
    assert recorder.heard[-1] == "end"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_while_validating_ends_the_training_after_the_epoch() -> None:
    history = run(
        lambda x: x, [1.0], 9, validation=lambda: signal.raise_signal(signal.SIGINT)
    )
    assert (history.epochs, history.steps) == (1, 1)
    assert history.stopped == "interrupted"


@pytest.mark.usefixtures("interruptible")
def test_a_second_ctrl_c_raises() -> None:
    def step(x: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    history = tj.History()
    with pytest.raises(KeyboardInterrupt):
        run(step, [1], 2, history=history)
    assert history.steps == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_users_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        history = run(lambda x: signal.raise_signal(signal.SIGINT), [1, 2], 1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(heard) == 2
    assert history.stopped is None


def test_it_runs_in_another_thread() -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(run(lambda x: x, [1.0])))
    thread.start()
    thread.join()
    assert results[0] == {"loss": [1.0]}


# What is shown


def test_plain_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stop = lambda epoch, logs: "enough" if epoch == 1 else None
    tj.fit(lambda x: x, [0.25, 0.5], 10, [stop], validation=lambda: 1 / 3)
    first, second, last = capsys.readouterr().out.splitlines()
    time = r"[\d.]+ (µs|ms|s)"
    pattern = rf"epoch  1/10  loss 0\.375  val_loss 0\.3333  {time}  {time}/step"
    assert re.fullmatch(pattern, first)
    assert second.startswith("epoch  2/10  loss 0.375")
    assert last == "stopped: enough"


def test_nothing_is_shown_if_not_wanted(capfd: pytest.CaptureFixture[str]) -> None:
    run(lambda x: signal.raise_signal(signal.SIGINT), [0.25, 0.5], 3)
    assert capfd.readouterr() == ("", "")


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_that_is_rewritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = FakeTerminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    tj.fit(lambda x: x, [0.25, 0.5], 2)
    text = out.getvalue()
    assert text.count("\n") == 2
    versions = text.split("\r\x1b[K")[1:]
    assert len(versions) == 6  # two batches and the end, twice
    assert versions[0].startswith("epoch 1/2  [##########..........]  1/2  loss 0.25")
    assert versions[1].startswith("epoch 1/2  [####################]  2/2  loss 0.375")
    assert all(len(version) <= 59 for version in versions if "\n" not in version)
    monkeypatch.setenv("TERM", "dumb")
    out.truncate(0)
    tj.fit(lambda x: x, [0.25, 0.5], 2)
    assert "\r" not in out.getvalue()


def test_data_of_unknown_length_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    out = FakeTerminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    tj.fit(lambda x: x, iter([0.25, 0.5]))
    assert "epoch 1/1  2  loss 0.375" in out.getvalue()


def test_ctrl_c_in_a_real_terminal() -> None:
    code = (
        "import signal, time, tapejit as tj\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def step(x):\n"
        "    time.sleep(0.01)\n"
        "    return 1.0\n"
        "history = tj.fit(step, [1] * 100_000)\n"
        "print('returned', history.stopped, history.steps > 0)\n"
    )
    leader, follower = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm"},
        start_new_session=True,
    )
    os.close(follower)
    seen = b""
    try:
        while b"loss 1" not in seen:
            seen += os.read(leader, 1000)
        os.kill(child.pid, signal.SIGINT)
        while not re.search(rb"returned .*\n", seen):
            seen += os.read(leader, 1000)
        assert child.wait(30) == 0
    finally:
        child.kill()
        os.close(leader)
    assert b"press Ctrl-C again" in seen
    assert b"stopped: interrupted" in seen
    assert b"returned interrupted True" in seen


def test_a_history_is_drawn() -> None:
    history = run(lambda x: {"a": x, "b": -x}, [1.0], 3)
    axes = history.plot()
    assert [line.get_label() for line in axes.lines] == ["a", "b"]
    assert axes.lines[0].get_xydata().tolist() == [[1, 1], [2, 1], [3, 1]]
    assert len(history.plot("b").lines) == 1
