"""Success statistics of prompts by hand, and what the filters pass over."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quatrain.config import CurriculumConfig, SourceConfig
from quatrain.data.history import PromptHistory, Record
from quatrain.data.mixture import SOURCE_STRIDE
from quatrain.data.prompts import PromptStream

RIGHT, WRONG, MIXED = [True, True], [False, False], [True, False]


class Letters:
    chat_template = None
    bos_token_id = None

    def encode(self, text, **_):
        return list(text.encode())


def history(*groups, index=0, **filters):
    """Groups of one prompt, one a step from step 1 on."""
    made = PromptHistory(CurriculumConfig(**filters))
    for step, right in enumerate(groups, 1):
        made.record(step, index, right)
    return made


def sources(tmp_path, *counts, long=()):
    """Files of `counts` rows; prompts are their numbers, and rows in `long` are too long."""
    made = []
    for number, count in enumerate(counts):
        path = tmp_path / f"{number}.jsonl"
        texts = ["too long" if row in long else f"{row:02d}" for row in range(count)]
        path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
        made.append(SourceConfig(source=str(path)))
    return made


def stream(given, **filters):
    return PromptStream(given, Letters(), 0, 3, history=PromptHistory(CurriculumConfig(**filters)))


def indices(prompts):
    return [prompt.index for prompt in prompts]


def play(made, step, count, outcome):
    """A step of `count` prompts whose groups come out as `outcome(index)`."""
    taken = indices(made.take(count))
    for index in taken:
        made.history.record(step, index, outcome(index))
    return taken


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([RIGHT], Record(1, 2, 2, 1, 1)),
        ([RIGHT, RIGHT, [True]], Record(3, 5, 5, 3, 3)),
        ([RIGHT, RIGHT, WRONG], Record(3, 6, 4, -1, 3)),
        ([WRONG, WRONG, MIXED], Record(3, 6, 1, 0, 3)),
        ([WRONG, MIXED, WRONG], Record(3, 6, 1, -1, 3)),
        ([RIGHT, [], RIGHT], Record(2, 4, 4, 2, 3)),  # not one judged completion: as if it had not been
        ([WRONG, [], []], Record(1, 2, 0, -1, 1)),
    ],
)
def test_records_by_hand(groups, expected):
    assert history(*groups).records == {0: expected}


def test_a_group_without_a_judged_completion_is_no_record():
    assert history([], []).records == {} and history([], []).step == 2


def test_partial_credit_that_differs_is_not_all_wrong():
    made = history(WRONG, WRONG, skip_wrong=3)
    made.record(3, 0, WRONG, informative=True)
    assert made.records[0] == Record(3, 6, 0, 0, 3) and made.passed_over(0) is None


def test_groups_in_a_row_decide():
    limits = {"skip_right": 2, "skip_wrong": 3}
    assert history(RIGHT, **limits).passed_over(0) is None
    assert history(RIGHT, RIGHT, **limits).passed_over(0) == "right"
    assert history(WRONG, WRONG, **limits).passed_over(0) is None
    assert history(WRONG, WRONG, WRONG, **limits).passed_over(0) == "wrong"
    assert history(RIGHT, RIGHT, MIXED, **limits).passed_over(0) is None
    assert history(RIGHT, RIGHT, skip_wrong=1).passed_over(0) is None
    assert history(RIGHT, RIGHT).passed_over(0) is None
    assert history(RIGHT, RIGHT, **limits).passed_over(1) is None


def test_a_retry_comes_once_after_its_wait():
    made = history(WRONG, skip_wrong=1, retry_after=3)  # tried in step 1: passed over in 2 and 3, due in 4
    assert made.passed_over(0) == "wrong"
    made.record(2, 1, MIXED)
    assert made.passed_over(0) == "wrong"
    made.record(3, 1, MIXED)
    assert made.passed_over(0) is None and made.may_take(0)
    made.hand_out(0)
    assert not made.may_take(0)  # not twice in a step
    made.record(4, 0, WRONG)
    assert made.passed_over(0) == "wrong" and made.records[0].streak == -2
    made.record(6, 1, MIXED)
    assert made.passed_over(0) is None
    made.record(7, 0, RIGHT)
    assert made.passed_over(0) is None


def test_metrics_by_hand():
    made = history(RIGHT, RIGHT, skip_right=2, skip_wrong=1)
    for index, right in ((1, WRONG), (2, MIXED), (3, [True, False, False, False])):
        made.record(3, index, right)
    assert {name: metric.value for name, metric in made.metrics().items()} == {
        "curriculum/seen": 4,
        "curriculum/passed_over_right": 1,
        "curriculum/passed_over_wrong": 1,
        "curriculum/success": (1 + 0 + 0.5 + 0.25) / 4,
    }
    assert history(RIGHT).metrics() == {}


def test_the_state_is_plain_and_compact():
    made = history(RIGHT, index=SOURCE_STRIDE + 5, skip_right=1)
    made.record(2, 3, MIXED)
    assert made.state_dict() == {
        "step": 2, "index": f"{SOURCE_STRIDE + 5} 3", "groups": "1 1", "judged": "2 2", "right": "2 1",
        "streak": "1 0", "last_step": "1 2",
    }  # fmt: skip
    again = PromptHistory(made.settings)
    again.load_state_dict(json.loads(json.dumps(made.state_dict())))
    assert again.records == made.records and again.step == 2
    again.load_state_dict({})  # of a run that kept none
    assert again.records == {} and again.state_dict() == PromptHistory().state_dict()
    again.load_state_dict(again.state_dict())
    many = PromptHistory()
    for index in range(10_000):
        many.record(1000, SOURCE_STRIDE + index, MIXED * 4)
    assert len(json.dumps(many.state_dict(), indent=1)) < 300_000


def test_the_others_keep_their_order(tmp_path):
    given = sources(tmp_path, 6)
    plain, filtered = stream(given), stream(given, skip_right=1, skip_wrong=2)
    first = indices(plain.take(6))
    assert play(filtered, 1, 6, lambda index: RIGHT if index in (1, 4) else WRONG) == first
    epochs = [indices(plain.take(6)) for _ in range(3)]
    left = [index for index in epochs[0] if index not in (1, 4)]
    assert play(filtered, 2, 4, lambda index: WRONG if index == 0 else MIXED) == left
    for step, epoch in enumerate(epochs[1:], 3):
        assert play(filtered, step, 3, lambda _: MIXED) == [index for index in epoch if index not in (1, 4, 0)]


def test_without_filters_nothing_is_passed_over(tmp_path):
    given = sources(tmp_path, 4, 3)
    plain, recording = stream(given), stream(given, retry_after=1)
    for step in range(1, 9):
        assert play(recording, step, 5, lambda _: RIGHT) == indices(plain.take(5))
    assert recording.state_dict() == plain.state_dict()


def test_a_source_keeps_its_share(tmp_path):
    made = stream(sources(tmp_path, 8, 8), skip_right=1)
    play(made, 1, 8, lambda index: RIGHT if index >= SOURCE_STRIDE + 1 else MIXED)
    for step in range(2, 6):
        taken = play(made, step, 4, lambda index: RIGHT if index >= SOURCE_STRIDE + 1 else MIXED)
        assert sum(index >= SOURCE_STRIDE for index in taken) == 2


def test_a_source_that_is_used_up_goes_on_in_its_order(tmp_path, caplog):
    given = sources(tmp_path, 4, long=(2,))
    plain, made = stream(given), stream(given, skip_right=1)
    for step in range(1, 7):
        assert play(made, step, 2, lambda _: RIGHT) == indices(plain.take(2))
    assert made.state_dict() == plain.state_dict() and made.skipped_long == 1
    assert caplog.text.count("prompts[0]: 0 has fewer prompts left than a step takes") == 1


def test_a_long_prompt_before_a_passed_over_one_is_counted(tmp_path):
    last = indices(stream(sources(tmp_path, 4)).take(4))[-1]
    made = stream(sources(tmp_path, 4, long=(last,)), skip_right=1)
    for step in (1, 2):
        play(made, step, 3, lambda _: RIGHT)
    assert made.skipped_long == 1


def test_the_one_prompt_that_is_left_is_one_place_of_a_step(tmp_path):
    made = stream(sources(tmp_path, 6), skip_wrong=1, retry_after=9)
    play(made, 1, 6, lambda index: MIXED if index == 3 else WRONG)
    for step in range(2, 6):
        taken = play(made, step, 3, lambda index: MIXED if index == 3 else WRONG)
        assert taken[0] == 3 and taken.count(3) == 1 and len(set(taken)) == 3


def test_a_step_of_more_prompts_than_there_are_repeats_them_in_order(tmp_path):
    given = sources(tmp_path, 3)
    plain, made = stream(given), stream(given, skip_right=1)
    assert play(made, 1, 8, lambda _: MIXED) == indices(plain.take(8))


@pytest.mark.parametrize("row", range(5))
def test_a_source_with_one_prompt_that_may_be_taken_finds_it_from_anywhere(tmp_path, row):
    """Also when its place lies behind in this epoch and far ahead in the next."""
    made = stream(sources(tmp_path, 5, long=set(range(5)) - {row}))
    assert indices(made.take(12)) == [row] * 12


@settings(max_examples=40, deadline=None)
@given(
    filters=st.fixed_dictionaries({
        "skip_right": st.integers(0, 2), "skip_wrong": st.integers(0, 2), "retry_after": st.integers(0, 4),
    }),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    outcomes=st.lists(st.sampled_from([RIGHT, RIGHT, WRONG, WRONG, MIXED, []]), min_size=1, max_size=7),
    stop=st.integers(0, 9),
    per_step=st.integers(1, 5),
)  # fmt: skip
def test_resuming_anywhere_continues_exactly(tmp_path_factory, filters, counts, outcomes, stop, per_step):
    given = sources(tmp_path_factory.mktemp("rows"), *counts, long=(2,))

    def outcome(index):
        return outcomes[index % SOURCE_STRIDE % len(outcomes)]

    straight, stopped, resumed = (stream(given, **filters) for _ in range(3))
    expected = [play(straight, step, per_step, outcome) for step in range(1, 13)]
    assert [play(stopped, step, per_step, outcome) for step in range(1, stop + 1)] == expected[:stop]
    state = json.loads(json.dumps([stopped.state_dict(), stopped.history.state_dict()]))
    stopped.take(3)  # what comes after the save must not leak into it
    resumed.load_state_dict(state[0])
    resumed.history.load_state_dict(state[1])
    assert [play(resumed, step, per_step, outcome) for step in range(stop + 1, 13)] == expected[stop:]
    assert resumed.state_dict() == straight.state_dict()
    assert resumed.history.state_dict() == straight.history.state_dict()
    assert repr(resumed.history.metrics()) == repr(straight.history.metrics())
