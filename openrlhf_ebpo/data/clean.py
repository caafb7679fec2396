"""Keep each question of a data set once, in one pass, whatever the number of rows: the questions themselves go to a
file, and only some 150 bytes per question stay in memory."""

from __future__ import annotations

import functools
import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from openrlhf_ebpo.data.questions import answer_key, bare_question, question_id
from openrlhf_ebpo.data.training_tables import ROW_BATCH_SIZE
from openrlhf_ebpo.rewards.math.golds import GoldError, MissingGold, read_label

TURNS = {"system": "s", "developer": "s", "user": "u", "assistant": "a"}
CHAT = re.compile("s*(ua)*u")  # of turns
MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))

NOT_ONE_MESSAGE = "prompt is neither text nor messages with exactly one of the user"
ENDS_WITH_ASSISTANT = "the chat ends with the assistant's turn; a prompt ends with the user's"
NOT_A_CHAT = "the chat is not a system message and turns of user and assistant in text"
CONFLICT = "the question comes with different answers"  # a reason for the report, as those of `_unusable`


@dataclass
class Tally:
    """Counts of a pass. Arrays have a place for each question, in the order of first appearance.

    index: a question's id as an integer -> its place. rows: rows with the question. keys: hash of its first answer, as
    answers are compared. conflicting: places of questions with answers that differ. chats: questions with messages
    before the user's. first: the number of the first row that is unusable for a reason.
    """

    whole_chats: bool = False  # what stands before the user's message is shown, and belongs to the question
    keep_system: bool = True  # so do the system messages
    total: int = 0
    bare: int = 0
    chats: int = 0
    long_answers: int = 0
    index: dict[int, int] = field(default_factory=dict)
    rows: array = field(default_factory=lambda: array("L"))
    keys: array = field(default_factory=lambda: array("q"))
    conflicting: set[int] = field(default_factory=set)
    unusable: Counter = field(default_factory=Counter)
    first: dict[str, int] = field(default_factory=dict)

    def kept(self) -> np.ndarray:
        """Return (questions,) bool: those without conflict."""
        kept = np.ones(len(self.rows), bool)
        kept[list(self.conflicting)] = False
        return kept

    def dropped(self) -> dict[str, int]:
        """Count rows by reason. With one row for each kept question they add up to all rows."""
        rows, kept = np.array(self.rows, dtype=np.int64), self.kept()
        repeated, conflicting = int((rows[kept] - 1).sum()), int(rows[~kept].sum())
        counts = {"repeats an earlier question and its answer": repeated, CONFLICT: conflicting, **self.unusable}
        return {reason: count for reason, count in counts.items() if count}

    def add(self, prompt, answer, source: str) -> tuple[str, list[dict], str, str, str] | None:
        """Count a row; (id, messages, label, question, source) if its question is new."""
        self.total += 1
        messages, reason = read_chat(prompt, self.whole_chats)
        if not self.keep_system:
            messages = [each for each in messages if TURNS[each["role"]] != "s"]
        own, label = messages[-1]["content"], answer_text(answer)
        before = messages[:-1] if self.whole_chats else []
        context = "".join(f"{message['role']}: {message['content']}\n\n" for message in before)
        question, number = _parse(own, context)
        reason = reason or _unusable(question, label)
        place = self.index.get(number)
        if not reason and place is not None:
            self._compare(place, label)
            return None
        if reason:
            self.unusable[reason] += 1
            self.first.setdefault(reason, self.total)
            return None
        self.index[number] = len(self.rows)
        self.rows.append(1)
        self.keys.append(hash(answer_key(label)))
        self.chats += bool(context)
        self.bare += question == own.strip() and not context
        self.long_answers += "\n" in label
        return f"{number:016x}", messages, label, question, source

    def _compare(self, place: int, label: str) -> None:
        self.rows[place] += 1
        if hash(answer_key(label)) != self.keys[place]:
            self.conflicting.add(place)


def clean(batches: Iterable[list[tuple]], datasource: str, show: Callable, tally: Tally, path: Path) -> None:
    """Write the first row of every question, conflicting ones included, to the Parquet file `path`.

    batches: lists of (prompt, answer, datasource). datasource: for rows that name none.
    show: (messages, bare question) -> what the model is shown, text or messages. tally: a new one, which is filled.
    """
    waiting = []
    kinds = {"id": pa.string(), "prompt": MESSAGES if tally.whole_chats else pa.string()}
    schema = pa.schema({**kinds, **dict.fromkeys(("label", "question", "datasource"), pa.string())})
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in batches:
            for prompt, answer, source in batch:
                if new := tally.add(prompt, answer, datasource if source is None else str(source)):
                    number, messages, label, question, source = new
                    waiting.append((number, show(messages, question), label, question, source))
            if len(waiting) >= ROW_BATCH_SIZE:
                writer.write_table(_table(waiting, schema))
                waiting = []
        writer.write_table(_table(waiting, schema))


def held_out(ids: np.ndarray, validation: int | float, seed: int) -> np.ndarray:
    """Choose the questions for validation: those with the smallest hash of seed and id, which is stable when
    the data set grows: a share keeps every choice, and of a number the ones chosen before can only leave.

    ids: (questions,) uint64. validation: how many (int), or a share of them (float). Returns (questions,) bool.
    """
    digests = (hashlib.sha256(f"{seed}:{number:016x}".encode()).digest() for number in ids.tolist())
    places = np.fromiter((int.from_bytes(digest[:8], "big") for digest in digests), np.uint64, len(ids))
    if isinstance(validation, float):
        return places < np.uint64(validation * 2**64)
    chosen = np.zeros(len(ids), bool)
    chosen[np.argsort(places, kind="stable")[:validation]] = True
    return chosen


def selected_rows(path: Path, mask: np.ndarray) -> Iterator[pa.Table]:
    """Yield the rows of `path` where `mask` is true, in batches; at least one, perhaps empty."""
    start = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(ROW_BATCH_SIZE):
            yield pa.Table.from_batches([batch]).filter(pa.array(mask[start : start + len(batch)]))
            start += len(batch)
        if not start:
            yield file.schema_arrow.empty_table()


def as_texts(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield tables whose chats have one message each with its text as the prompt."""
    for table in tables:
        contents = pc.struct_field(pc.list_flatten(table["prompt"]), "content")
        yield table.set_column(table.column_names.index("prompt"), "prompt", contents)


def read_chat(prompt, whole: bool = False) -> tuple[list[dict], str | None]:
    """Return the messages of a prompt, text or chat, and why it cannot be used. The last message is the user's.

    whole: what stands before it counts; otherwise the one message of the user is returned alone.
    """
    nothing = [{"role": "user", "content": ""}]
    if prompt is None or isinstance(prompt, str):
        return [{"role": "user", "content": prompt or ""}], None
    messages = [each for each in prompt if isinstance(each, dict)] if isinstance(prompt, list) else []
    texts = [{"role": each.get("role"), "content": each.get("content")} for each in messages]
    if not whole or not texts:
        users = [each for each in texts if each["role"] == "user"]
        usable = len(users) == 1 and isinstance(users[0]["content"], str)
        return (users, None) if usable else (nothing, NOT_ONE_MESSAGE)
    if texts[-1]["role"] == "assistant":
        return nothing, ENDS_WITH_ASSISTANT
    others = [value for each in messages for name, value in each.items() if name not in ("role", "content")]
    usable = all(isinstance(each["content"], str) for each in texts) and not any(others)  # calls of tools, pictures
    turns = "".join(TURNS.get(each["role"], "?") for each in texts)
    return (texts, None) if usable and CHAT.fullmatch(turns) else (nothing, NOT_A_CHAT)


def prompt_text(prompt) -> str | None:
    """Return the user's text of a prompt: itself, or the content of the one message of the user; or None."""
    messages, problem = read_chat(prompt)
    return None if problem else messages[0]["content"]


def answer_text(answer) -> str | None:
    """Return a gold answer as text, "" if it is missing, None if the reward `math` cannot read it."""
    try:
        return _read_text(answer) if isinstance(answer, str) else read_label(answer)
    except MissingGold:
        return ""
    except GoldError:
        return None


_read_text = functools.lru_cache(1 << 16)(read_label)


@functools.lru_cache(1 << 16)  # DAPO-Math-17K has 17 thousand different prompts in 1.8 million rows
def _parse(prompt: str, context: str) -> tuple[str, int]:
    question = bare_question(prompt)
    return question, int(question_id(context + question), 16)


def _unusable(question: str, label: str | None) -> str | None:
    if not question:
        return "no question"
    if label is None:
        return "answer is not a final answer that the reward `math` reads"
    return None if label else "no answer"


def _table(rows: list[tuple], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.table([pa.array(c, kind) for c, kind in zip(columns, schema.types, strict=True)], schema)
