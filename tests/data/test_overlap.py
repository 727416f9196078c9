import pytest

from quatrain.data.overlap import check_disjoint, normalise
from quatrain.data.sources import Row
from quatrain.errors import SettingError


def rows(*questions):
    return [Row(number=i, prompt=text, question=text, columns={}) for i, text in enumerate(questions)]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("What is 3 + 2?", "what  is 3+2 ?"),
        ("It costs 1,000 dollars.", "it costs 1000 dollars"),
        ("Sam's “books”", 'Sam\u2019s "books"'),
        ("\uff12\uff0b\uff12", "2+2"),  # full-width digits and sign
        ("5 \u2212 3", "5 - 3"),  # minus sign
        ("a\tb\n", "A b"),
        ("Stra\u00dfe", "STRASSE"),
    ],
)
def test_equal_after_normalisation(left, right):
    assert normalise(left) == normalise(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [("3.5", "35"), ("3 - 2", "3 + 2"), ("5!", "5"), ("(1+2)*3", "1+(2*3)"), ("12", "1 2"), ("1,2", "12"), ("?", "!")],
)
def test_what_carries_meaning_stays(left, right):
    assert normalise(left) != normalise(right)


def test_disjoint_passes():
    check_disjoint(rows("What is 1 + 1?", "What is 1 + 2?"), rows("What is 2 + 1?"))
    check_disjoint(rows("a"), [])


def test_shared_prompts_are_counted_with_an_example():
    train = rows("what is 3+2", "What is 3 + 2 ?", "Caf\u00e9 or tea", "other")
    with pytest.raises(SettingError) as caught:
        check_disjoint(train, rows("What is 3 + 2?", "CAFE\u0301 or tea?", "What is 3 - 2?"))
    assert "held_out: got 2 of 3 prompts that are also trained on (e.g. '" in str(caught.value)
    assert "seeds further apart than size" in str(caught.value)


def test_a_held_out_text_in_full_width_is_found_among_ascii():
    with pytest.raises(SettingError):
        check_disjoint(rows("what is 2+2"), rows("What is \uff12\uff0b\uff12?"))


def test_near_seeds_of_reasoning_gym_are_caught_and_far_ones_pass():
    pytest.importorskip("reasoning_gym")
    from quatrain.config import SourceConfig
    from quatrain.data.sources import load_rows

    def load(seed, template):
        options = {"size": 20, "seed": seed, "min_digits": 3, "max_digits": 4}
        source = SourceConfig(source="reasoning-gym:chain_sum", options=options, template=template)
        return load_rows(source)

    train = load(0, "{prompt}")
    with pytest.raises(SettingError, match=r"got 5 of 20 prompts"):
        check_disjoint(train, load(15, "{prompt} Answer with the number only."))
    check_disjoint(train, load(1000, "{prompt}"))
