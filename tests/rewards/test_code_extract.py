"""Which part of a completion is the program."""

import time

import pytest

from quatrain.rewards.code_extract import defines, extract_program, sources

CODE = "def f(x):\n    return x"
FENCE = "```"


@pytest.mark.parametrize(
    ("text", "program"),
    [
        (CODE, CODE),
        (f"{FENCE}python\n{CODE}\n{FENCE}", CODE),
        (f"Sure!\n{FENCE}\n{CODE}\n{FENCE}\nIt returns x.", CODE),
        (f"{FENCE}python\nold\n{FENCE}\nBetter:\n{FENCE}py\n{CODE}\n{FENCE}\nDone.", CODE),
        (f"{CODE}\n{FENCE}", CODE),
        (f"{CODE}\n{FENCE}\nThis returns x.", CODE + "\n"),
        (f"{FENCE}python\n{CODE}", CODE),
        (f"{FENCE}\n{CODE}", CODE),
        (f"{FENCE}python\n{CODE}\n{FENCE}\n{FENCE}python\ndef g(", CODE),
        (f"{FENCE}python\n{CODE}\n{FENCE}\n{FENCE}", CODE),
        (f"{FENCE}python\n{CODE}\n{FENCE}\nOutput:\n{FENCE}text\n5\n{FENCE}", CODE),
        (f"{FENCE}bash\npip install x\n{FENCE}", ""),
        (f"{FENCE}bash\npip install", ""),
        (f"~~~python\n{CODE}\n~~~", CODE),
        (f"````python\n{CODE}\n# {FENCE}\n{FENCE}\n````", f"{CODE}\n# {FENCE}\n{FENCE}"),
        (f"<think>\n{FENCE}python\nwrong\n{FENCE}\n</think>\n{FENCE}python\n{CODE}\n{FENCE}", CODE),
        (f"{FENCE}python\r\n{CODE}\r\n{FENCE}\r\n", f"{CODE}\r"),
        (f"{CODE}\n{FENCE}\nNow better:\n{FENCE}python\nbest\n{FENCE}", "best"),
        ("    return x\n", "    return x\n"),
        ("", ""),
    ],
)
def test_d14_extraction(text: str, program: str) -> None:
    assert extract_program(text).rstrip("\n") == program.rstrip("\n")


def test_time_is_linear_in_the_text() -> None:
    started = time.monotonic()
    for text in (
        "`" * 1_000_000, "~" * 1_000_000 + "`", "```" + " " * 1_000_000 + "`", "```\n" * 250_000, " " * 1_000_000,
        "from " + "x" * 1_000_000, "x" * 1_000_000,
    ):  # fmt: skip
        defines(extract_program(text), "f")
    assert time.monotonic() - started < 10.0


def test_a_continuation_goes_on_where_the_prompt_ends() -> None:
    prompt = 'import math\ndef f(x):\n    """Doc."""\n'
    assert sources("    return x", prompt, "f") == [prompt + "    return x"]
    assert sources(CODE, prompt, "f") == [prompt, CODE]
    assert sources(CODE, "", "f") == [CODE]
    assert sources("def f_other(): pass", prompt, "f") == [prompt + "def f_other(): pass"]
