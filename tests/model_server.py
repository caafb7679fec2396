"""An OpenAI-compatible server in this process, which misbehaves as a test says; and questions that are asked of it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from openrlhf_ebpo.eval import endpoint_questions, protocols
from openrlhf_ebpo.eval.endpoint import Endpoint
from openrlhf_ebpo.eval.prompts import PromptForm

KEY = "sk-proj-0123456789abcdefghij"
RAW, CHAT = PromptForm("{question}\n"), PromptForm("Q: {question}", chat_template=True, system="Be short.")
GREEDY = protocols.override(protocols.get("greedy"), max_new_tokens=8)
SAMPLED = protocols.override(protocols.get("default"), n=4, max_new_tokens=8)
CARD = {"id": "m", "owned_by": "someone"}
VLLM = {"id": "m", "owned_by": "vllm", "root": "org/model", "max_model_len": 64, "created": 1}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.misbehaviour.list(self)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append((self.path, body, dict(self.headers)))
            number = len(self.server.asked)
        self.server.misbehaviour(self, body, number)

    def reply(self, content, status: int = 200, **headers) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)


def answer(body: dict, texts: list[str] | None = None, **more) -> dict:
    """As the API answers: "Answer: <length of the prompt>"."""
    said = body.get("prompt") or body["messages"][-1]["content"]
    texts = texts or [f"Answer: {len(said)}"] * body.get("n", 1)
    chat = "messages" in body
    choices = [
        {**({"message": {"role": "assistant", "content": text}} if chat else {"text": text}), "finish_reason": "stop"}
        for text in texts
    ]
    return {"choices": choices, "usage": {"prompt_tokens": len(said), "completion_tokens": 3 * len(texts)}, **more}


class Good:
    """What a server does; tests overwrite a part. cards: what it lists; None: it does not."""

    def __init__(self, behave: Callable | None = None, cards: list | None = None):
        self.behave, self.cards = behave, [CARD] if cards is None else cards

    def list(self, handler: Handler) -> None:
        handler.reply({"object": "list", "data": self.cards})

    def __call__(self, handler: Handler, body: dict, number: int) -> None:
        if self.behave is None or not self.behave(handler, body, number):
            handler.reply(answer(body))


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_):
        pass  # clients hang up


@contextlib.contextmanager
def servers():
    """start(behave, cards) -> a server; its address, `asked` (path, body, headers) and `lock`. All end with the block."""
    started = []

    def start(behave: Callable | None = None, cards: list | None = None) -> Server:
        server = Server(("127.0.0.1", 0), Handler)
        server.misbehaviour = behave if isinstance(behave, Good) else Good(behave, cards)
        server.asked, server.lock = [], threading.Lock()
        server.url = f"http://127.0.0.1:{server.server_port}/v1"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        started.append(server)
        return server

    try:
        yield start
    finally:
        for server in started:
            server.shutdown()
            server.server_close()


def respond(server, count: int = 1, form=RAW, protocol=GREEDY, keep=None, said=None, **changes):
    """(records by key, failures) of `count` questions; changes: of the endpoint."""
    asked = Endpoint(server.url, "m", **{"request_timeout": 20.0, "retries": 1, **changes})
    records: dict[str, dict] = {}
    questions = [(f"t/{i}", endpoint_questions.asked(form, "x" * (i + 1)), protocol.n) for i in range(count)]
    say = (said if said is not None else []).append
    failed = endpoint_questions.respond(asked, questions, form, protocol, keep or records.__setitem__, say)
    return records, failed


def arguments(folder: Path, server, *more: str) -> list[str]:
    """Of a command that asks the server six questions."""
    rows = [{"question": f"1+{i}?", "answer": "2"} for i in range(6)]
    (folder / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = f"openai:{server.url}#m"
    argv = ["--model", model, "--tasks", f"file:{folder}/q.jsonl", "--output_dir", str(folder / "out")]
    return [*argv, "--protocol", "released", "--n", "1", "--no-chat_template", "--template", "raw", *more]
