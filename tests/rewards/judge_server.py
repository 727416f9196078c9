"""A stand-in for an OpenAI-compatible server, in a thread: what it says is a function of the question."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = str | tuple[int, str] | float  # text; status and body; seconds to stay silent


def part(question: str, name: str) -> str:
    """What stands between the markers of this name."""
    match = re.search(rf"\[BEGIN {name} (\w+)\]\n(.*?)\n\[END {name} \1\]", question, re.DOTALL)
    return match[2] if match else ""


def verdict(question: str, said: object) -> str:
    """A judge's reply that ends with its verdict line."""
    code = re.search(r"\[BEGIN TASK (\w{8})\]", question)
    assert code is not None
    return f"Let me see.\nVERDICT {code[1]}: {said}"


def fair(question: str) -> str:
    """10 for the answer 4 and 1 for anything else; of two, the longer."""
    if "FIRST ANSWER" in question:
        first, second = len(part(question, "FIRST ANSWER")), len(part(question, "SECOND ANSWER"))
        return verdict(question, "tie" if first == second else "first" if first > second else "second")
    return verdict(question, 10 if part(question, "ANSWER") == "4" else 1)


@dataclass
class StandIn:
    """Its address, the questions it was asked and the headers they came with."""

    answer: Callable[[str], Reply] = fair
    address: str = ""
    questions: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def handle(self, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        question = body["messages"][-1]["content"]
        self.questions.append(question)
        self.headers.append(headers)
        return self.answer(question)


@contextmanager
def stand_in(answer: Callable[[str], Reply] = fair) -> Iterator[StandIn]:
    """A running server on a free local port."""
    own = StandIn(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reply = (
                own.handle(body, dict(self.headers)) if self.path == "/v1/chat/completions" else (404, "no such path")
            )
            if isinstance(reply, float):
                time.sleep(reply)
                return
            status, text = reply if isinstance(reply, tuple) else (
                200, json.dumps({"choices": [{"message": {"role": "assistant", "content": reply}}]}))  # fmt: skip
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    own.address = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield own
    finally:
        server.shutdown()
        server.server_close()
