import random
import re

import quatrain

pairs = random.Random(0).sample([(a, b) for a in range(10, 1000) for b in range(10, 1000) if a != b], 1096)
rows = [{"prompt": f"Answer with one number. Which is larger, {a} or {b}?", "answer": str(max(a, b))} for a, b in pairs]


def right(completion, answer):
    return re.findall(r"\d+", completion)[:1] == [answer]


settings = {"steps": 24, "prompts_per_step": 8, "max_tokens": 12, "learning_rate": 2e-5, "kl": {"placement": "none"}}
result = quatrain.train(
    model="smollm2-135m", prompts=rows[96:], held_out=rows[:96], verifiers=right, output="runs/larger", **settings
)
result.plot("runs/larger/curves.png")
print(result)
