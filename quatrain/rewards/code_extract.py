"""Finding the program in a completion. By lines and in linear time: nothing of the text is parsed or run here."""

import re
from dataclasses import dataclass

_FENCE = re.compile(r"^[ \t]{0,3}(`{3,}+|~{3,}+)([^`\n]*)$")
_PYTHON = {"", "python", "python3", "py", "python 3"}
_LOOKS_LIKE_CODE = re.compile(
    r"^(?:[ \t]+\S|def |class |import |from \S+ import|print\(|return |for |if |while |@|#|\w+ = )"
)


@dataclass(frozen=True, slots=True)
class _Block:
    language: str
    text: str


def extract_program(text: str) -> str:
    """The last complete fenced block in Python (or without a language) behind the last </think>.

    Without one: what follows an opening fence that is never closed (a completion that was cut off); what precedes a
    closing fence that was never opened (the opening was in the prompt); else the whole text. Blocks of other languages
    do not count.
    """
    text = text.rpartition("</think>")[2]
    complete, rest, opened = _blocks(text.split("\n"))
    wanted = [block.text for block in complete if block.language in _PYTHON]
    if wanted:
        return wanted[-1]
    if opened is None:
        return "" if complete else text
    before, after = rest
    if opened.language in _PYTHON - {""}:
        return after
    if opened.language:
        return ""
    return before if any(_LOOKS_LIKE_CODE.match(line) for line in before.split("\n")) else after


def _blocks(lines: list[str]) -> tuple[list[_Block], tuple[str, str], _Block | None]:
    """Complete blocks; then for a last fence without a partner, the text before and behind it, and the fence."""
    complete: list[_Block] = []
    opening: tuple[int, str, str] | None = None
    after_last = 0
    for number, line in enumerate(lines):
        fence = _FENCE.match(line.rstrip("\r"))
        if fence is None:
            continue
        mark, language = fence[1], fence[2].strip().lower()
        if opening is None:
            opening = (number, mark, language)
        elif mark[0] == opening[1][0] and len(mark) >= len(opening[1]) and not language:
            complete.append(_Block(opening[2], "\n".join(lines[opening[0] + 1 : number])))
            opening, after_last = None, number + 1
        elif language:  # a fence with a language opens a block: the one before was never closed
            opening = (number, mark, language)
    if opening is None:
        return complete, ("", ""), None
    before, after = "\n".join(lines[after_last : opening[0]]), "\n".join(lines[opening[0] + 1 :])
    return complete, (before, after), _Block(opening[2], "")


def defines(program: str, entry: str) -> bool:
    """True when a line of `program` begins a function or class called `entry`."""
    return (
        re.search(rf"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+{re.escape(entry)}\b", program, re.MULTILINE) is not None
    )


def sources(program: str, context: str, entry: str) -> list[str]:
    """What to run, in order: the prompt's own program (imports, helpers) and then `program`, when it defines `entry`.

    A continuation, which does not, goes on where the prompt's unfinished function ends: the two are one source.
    """
    if not context or not entry:
        return [program]
    if defines(program, entry):
        return [context, program]
    return [context + program if context.endswith("\n") or program.startswith("\n") else f"{context}\n{program}"]
