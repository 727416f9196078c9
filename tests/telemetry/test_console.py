"""Plain lines outside a terminal, a bar inside one."""

import io

import pytest

from quatrain.telemetry.console import Console, duration
from quatrain.telemetry.metrics import Last, Mean, Metric

METRICS: dict[str, Metric] = {
    "reward/mean": Mean(3, 8),
    "kl/reference_k3": Last(0.01234),
    "policy/entropy": Last(1.5),
    "rollout/length": Mean(61, 2),
    "groups/zero_variance": Mean(1, 4),
    "speed/tokens_per_s": Last(812.4),
}


class Clock:
    """Seconds that only the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def plain(stream: io.StringIO, clock: Clock) -> Console:
    return Console(stream, terminal=False, clock=clock)


def words(stream: io.StringIO) -> list[list[str]]:
    """The printed lines, split at spaces."""
    return [line.split() for line in stream.getvalue().splitlines()]


def test_one_line_a_step_under_one_heading(plain: Console, stream: io.StringIO, clock: Clock) -> None:
    plain.start(total_steps=10, first_step=1)
    clock.now = 30
    plain.step(1, METRICS)
    plain.step(2, {})
    assert words(stream) == [
        ["step", "reward", "KL", "entropy", "length", "zero-var", "tokens/s", "time", "left"],
        ["1/10", "0.375", "0.0123", "1.500", "30.5", "25%", "812", "4", "min", "30", "s"],
        ["2/10", *["-"] * 6, "2", "min", "00", "s"],
    ]
    heading, first, second = stream.getvalue().splitlines()
    assert len(heading) == len(first) == len(second)


def test_time_left_counts_the_steps_of_this_process_only(plain: Console, stream: io.StringIO, clock: Clock) -> None:
    plain.start(total_steps=10, first_step=8)
    clock.now = 20
    plain.step(8, {})
    assert words(stream)[-1][-2:] == ["40", "s"]
    plain.step(10, {})
    assert words(stream)[-1][-2:] == ["0", "s"]


def test_what_is_not_a_number_is_shown(plain: Console, stream: io.StringIO) -> None:
    plain.start(1)
    plain.step(1, {"reward/mean": Last(float("nan")), "kl/reference_k3": Last(float("inf"))})
    assert words(stream)[-1][1:3] == ["nan", "inf"]


def test_a_long_phase_gives_a_sign_of_life(plain: Console, stream: io.StringIO, clock: Clock) -> None:
    plain.start(total_steps=4, first_step=2)
    for done in range(7):
        plain.phase("sampling", done, 128)
        clock.now += 10
    assert [line for line in stream.getvalue().splitlines() if "sampling" in line] == [
        "step 2/4: sampling 3/128",
        "step 2/4: sampling 6/128",
    ]


def test_the_evaluation_after_the_last_step_belongs_to_it(plain: Console, stream: io.StringIO, clock: Clock) -> None:
    plain.start(total_steps=2, first_step=2)
    plain.step(2, {})
    clock.now = 1000
    plain.phase("evaluating", 1, 3)
    assert stream.getvalue().splitlines()[-1] == "step 2/2: evaluating 1/3"


def test_many_short_phases_stay_silent_only_so_long(plain: Console, stream: io.StringIO, clock: Clock) -> None:
    for index in range(8):
        plain.phase(("sampling", "scoring")[index % 2], 1, 2)
        clock.now += 10
    assert len(words(stream)) == 2


def test_a_warning_is_said_once(plain: Console, stream: io.StringIO) -> None:
    plain.warn("old [bold]environment[/bold]")
    plain.warn("old [bold]environment[/bold]")
    assert stream.getvalue() == "warning: old [bold]environment[/bold]\n"


def test_a_long_line_is_not_broken(plain: Console, stream: io.StringIO) -> None:
    plain.say("x" * 500)
    assert stream.getvalue() == "x" * 500 + "\n"


def test_a_table_shows_text_as_it_is(plain: Console, stream: io.StringIO) -> None:
    plain.table("Held out", [("", "before", "after"), ("accuracy", 0.25, 0.5), ("[red]said", ":smile:", 3)])
    assert words(stream) == [
        ["Held", "out"],
        ["before", "after"],
        ["accuracy", "0.25", "0.5"],
        ["[red]said", ":smile:", "3"],
    ]


def test_plain_output_has_no_control_codes(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Console(stream, terminal=False) as console:
        console.start(2)
        console.phase("sampling", 1, 2)
        console.step(1, METRICS)
        console.warn("careful")
        console.table("T", [("a",), ("b",)])
    assert stream.getvalue().replace("\n", "").isprintable()


def test_a_terminal_has_a_bar_and_keeps_the_lines(stream: io.StringIO) -> None:
    with Console(stream, terminal=True) as console:
        console.start(total_steps=3)
        console.phase("sampling", 64, 128)
        console.phase("update", 3, 8)
        console.step(1, METRICS)
        console.phase("sampling", 1, 128)
    shown = stream.getvalue()
    assert "step 1/3: update" in shown
    assert "3/8" in shown
    assert "step 2/3: sampling" in shown
    assert "0.375" in shown
    assert "\x1b[" in shown
    assert shown.rstrip().endswith("\x1b[2K")  # the bar is wiped at the end


def test_without_a_stream_it_is_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    Console().say("hello")
    assert capsys.readouterr().out == "hello\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (3599.6, "1 h 00 min"), (12_000, "3 h 20 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
