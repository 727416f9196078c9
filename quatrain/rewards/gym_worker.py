"""Scorers of reasoning-gym's tasks; runs in a worker process that is killed at its deadline."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from reasoning_gym import get_score_answer_fn

_scorer: Callable[[str], Callable[..., float]] = functools.cache(get_score_answer_fn)


def task_score(question: str, gold: Any, metadata: Mapping[str, Any], answer: str) -> float:
    """What the task that made the row pays for an answer, in [0, 1]; 0 where its scorer cannot read the answer.

    Raises ValueError for an unknown task.
    """
    scorer = _scorer(metadata["source_dataset"])
    try:
        return float(scorer(answer, {"question": question, "answer": gold, "metadata": dict(metadata)}))
    except ValueError:  # for instance from int("no idea")
        return 0.0
