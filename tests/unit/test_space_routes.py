"""What the server answers besides the pages: static files."""

import hashlib

from space_runs import learning_run
from starlette.applications import Starlette
from starlette.testclient import TestClient

from openrlhf_ebpo.space import server
from openrlhf_ebpo.space.document import PLOTLY, STATIC
from openrlhf_ebpo.space.runs import Runs
from openrlhf_ebpo.space.workspace import Workspace


def test_plotly_is_sent_packed_and_is_the_file_of_its_package(tmp_path):
    learning_run(tmp_path / "a", steps=3, seed=1, name="a", prompts=4)
    known = server.app_kwargs("0", Workspace(Runs([str(tmp_path)])))
    inner = Starlette(routes=known["routes"], middleware=known["middleware"])
    app = TestClient(inner, base_url="http://127.0.0.1:7860", raise_server_exceptions=False)
    answer = app.get(f"/space/{PLOTLY}?0.1.0-1")
    assert answer.status_code == 200 and "javascript" in answer.headers["content-type"]
    assert answer.headers["content-encoding"] == "gzip" and int(answer.headers["content-length"]) < 500_000
    assert answer.headers["cache-control"].endswith("immutable")
    assert hashlib.sha256(answer.content).hexdigest() in (STATIC / "vendor" / "README.md").read_text()
    assert "content-encoding" not in app.get("/space/style.css").headers
