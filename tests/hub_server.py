"""A Hugging Face Hub on this machine, as small as the unmodified client allows, with fault injection.

    hub = HubServer(); hub.start()      HF_ENDPOINT=hub.url HF_TOKEN=hub.token HF_HUB_DISABLE_XET=1
    hub.fail(r"POST .*/commit/", status=503, times=2)
    hub.repo("owner/name").files("step-000010")["config.json"]     bytes

What lies in a repo is kept in memory and outlives `stop()` and another `start()` on the same port.
"""

from __future__ import annotations

import base64
import contextlib
import fnmatch
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import yaml
from hub_repos import Commit, File, Repo, git_hash

LFS = ("*.safetensors", "*.parquet", "*.bin", "*.pt", "*.whl", "*.png")
LFS_FROM = 1_000_000  # bytes
DATE = "2026-01-02T03:04:05.000Z"


@dataclass
class Fault:
    """A fault of requests whose "METHOD /path?query" matches `pattern`.

    status, headers, body: the answer, instead of doing it. cut: the connection is dropped in the middle of the body
    (of an upload's request, of a download's answer). lost: it is done, and the connection dropped before the answer.
    hang: no answer until the client gives up or the server stops. corrupt: other bytes of the same length are sent.
    stall: half of a body is taken (of an upload's request) or sent (of an answer), and then nothing happens, as in
    `hang`.
    drip: seconds for each byte of that body; of an answer also for each byte of its head. delay: seconds before
    anything.
    times: how often; after: how many matching requests pass untouched first.
    """

    pattern: str
    status: int | None = None
    headers: dict = field(default_factory=dict)
    body: bytes = b"{}"
    cut: bool = False
    lost: bool = False
    hang: bool = False
    corrupt: bool = False
    stall: bool = False
    drip: float = 0.0
    delay: float = 0.0
    times: float = 1
    after: int = 0
    hits: int = 0


class Reply(Exception):
    """The answer to a request; raised from anywhere."""

    def __init__(self, body=None, status: int = 200, **headers: str):
        self.status = status
        self.body = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def refuse(status: int, code: str = "", message: str = "refused by the test server") -> Reply:
    return Reply({"error": message}, status, X_Error_Message=message, **({"X_Error_Code": code} if code else {}))


class HubServer:
    """Accounts: `token` may write for `user`; `read_token` may not; any other token is invalid."""

    user = "owner"
    orgs = ("team",)
    token = "hf_writeTOKENwriteTOKENwriteTOKEN"
    read_token = "hf_readTOKENreadTOKENreadTOKENread"

    def __init__(self):
        self.repos: dict[tuple[str, str], Repo] = {}
        self.blobs: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.requests: list[str] = []  # "METHOD /path?query"
        self.bodies: list[bytes] = []  # of each request
        self.answers: list[bytes] = []  # their bodies, as they should arrive
        self.lock = threading.RLock()
        self.at_once = self.most_at_once = 0  # requests that wait for the first byte of their answer
        self.port = 0
        self.server: ThreadingHTTPServer | None = None
        self.stopping = threading.Event()

    def start(self) -> HubServer:
        self.stopping.clear()
        handler = type("Handler", (Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self.server.daemon_threads = True
        self.server.block_on_close = False
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Stop listening; what was pushed stays."""
        self.stopping.set()
        if self.server:
            self.server.shutdown()
            self.server.server_close()
            self.server = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables for a process that is to use this server (its HF_HOME should be a folder of its own)."""
        variables = {"HF_ENDPOINT": self.url, "HF_TOKEN": self.token, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
        return {**variables, "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}

    def repo(self, name: str, type: str = "model") -> Repo:
        return self.repos[type, name]

    def create(self, name: str, type: str = "model", private: bool = False, **settings) -> Repo:
        repo = self.repos[type, name] = Repo(name, type, private, settings=settings)
        attributes = "".join(f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in LFS)
        repo.commit("main", {".gitattributes": File(attributes.encode(), False)}, "initial commit")
        return repo

    def fail(self, pattern: str, status: int | None = None, **how) -> Fault:
        """Add a fault; see `Fault`."""
        self.faults.append(Fault(pattern, status, **how))
        return self.faults[-1]

    def fault_for(self, request: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if re.search(fault.pattern, request):
                    fault.hits += 1
                    if fault.after < fault.hits <= fault.after + fault.times:
                        return fault
        return None

    def count(self, pattern: str) -> int:
        return sum(bool(re.search(pattern, request)) for request in self.requests)


class Handler(BaseHTTPRequestHandler):
    hub: HubServer
    log_message = lambda *_: None  # noqa: E731

    def answer_request(self) -> None:
        with contextlib.suppress(OSError):  # the client went away
            with self.counted():  # not while it is sent: who has the answer may ask again before this thread continues
                reply, fault = self.take_request()
            if reply and not (fault and fault.lost):
                self.send(reply, fault)

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        with self.hub.lock:
            self.hub.at_once += 1
            self.hub.most_at_once = max(self.hub.most_at_once, self.hub.at_once)
        try:
            yield
        finally:
            with self.hub.lock:
                self.hub.at_once -= 1

    def take_request(self) -> tuple[Reply | None, Fault | None]:
        """The answer and the fault that goes with it; no answer where the fault is that none comes."""
        request = f"{self.command} {unquote(self.path)}"
        self.hub.requests.append(request)
        fault = self.hub.fault_for(request)
        if fault and fault.delay:
            self.hub.stopping.wait(fault.delay)
        uploads = self.command in ("PUT", "POST")
        if fault and fault.hang:
            self.hub.stopping.wait()
            return None, fault
        if fault and (fault.cut or fault.stall) and uploads:
            self.rfile.read(int(self.headers.get("Content-Length") or 2) // 2)
            if fault.stall:
                self.hub.stopping.wait()
            return None, fault
        if fault and fault.drip and uploads:
            while self.rfile.read(1) and not self.hub.stopping.wait(fault.drip):
                pass
            return None, fault
        self.body = self.read_body()
        self.hub.bodies.append(self.body)
        return (Reply(fault.body, fault.status, **fault.headers) if fault and fault.status else self.reply()), fault

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer_request

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def send(self, reply: Reply, fault: Fault | None) -> None:
        body = reply.body
        self.hub.answers.append(body if self.command != "HEAD" else b"")
        if fault and fault.corrupt:
            body = bytes(byte ^ 1 for byte in body)
        try:
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(body)), **reply.headers}.items():
                self.send_header(name, str(value))
            if fault and fault.drip:
                head, self._headers_buffer = b"".join(self._headers_buffer) + b"\r\n", []
                self.drip(head + body, fault.drip)
                return
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[: len(body) // 2] if fault and (fault.cut or fault.stall) else body)
            if fault and fault.stall:
                self.hub.stopping.wait()
        except OSError:
            pass  # the client went away

    def drip(self, content: bytes, seconds: float) -> None:
        for byte in content:
            self.wfile.write(bytes([byte]))
            if self.hub.stopping.wait(seconds):
                return

    def reply(self) -> Reply:
        parts = urlsplit(self.path)
        self.query = parse_qs(parts.query)
        for method, pattern, function in ROUTES:
            match = re.fullmatch(pattern, parts.path)
            if match and self.command in method:
                with self.hub.lock:
                    try:
                        return Reply(function(self, **{k: v and unquote(v) for k, v in match.groupdict().items()}))
                    except Reply as reply:
                        return reply
        return refuse(404, message=f"the test server knows no {self.command} {parts.path}")

    def json(self) -> dict:
        return json.loads(self.body or b"{}")

    # Who may do what

    def role(self) -> str | None:
        """write, read, or None."""
        header = self.headers.get("Authorization")
        if header is None:
            return None
        roles = {self.hub.token: "write", self.hub.read_token: "read"}
        if header.removeprefix("Bearer ") not in roles:
            raise refuse(401, message="Invalid credentials in Authorization header")
        return roles[header.removeprefix("Bearer ")]

    def need_write(self, namespace: str) -> None:
        if self.role() is None:
            raise refuse(401, message="Invalid username or password.")
        if self.role() != "write" or namespace not in (self.hub.user, *self.hub.orgs):
            raise refuse(403, message=f"You don't have the rights to write for {namespace}")

    def find(self, kind: str | None, name: str, write: bool = False) -> Repo:
        role = self.role()
        repo = self.hub.repos.get(((kind or "models")[:-1], name))
        if repo is None or (repo.private and role is None):
            raise refuse(401 if role is None else 404, "RepoNotFound", "Repository not found")
        if write:
            self.need_write(name.partition("/")[0])
        return repo

    def commit_at(self, repo: Repo, revision: str) -> Commit:
        found = repo.find(revision)
        if found is None:
            raise refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return found

    # Accounts and repos

    def whoami(self):
        role = self.role()
        if role is None:
            raise refuse(401, message="Invalid username or password.")
        orgs = [{"name": name, "roleInOrg": "admin"} for name in self.hub.orgs]
        token = {"displayName": "test", "role": role}
        return {"type": "user", "name": self.hub.user, "orgs": orgs, "auth": {"accessToken": token}}

    def create(self):
        wanted = self.json()
        name = f"{wanted.get('organization') or self.hub.user}/{wanted['name']}"
        kind = wanted.get("type") or "model"
        self.need_write(name.partition("/")[0])
        url = f"{self.hub.url}/{'' if kind == 'model' else kind + 's/'}{name}"
        if (kind, name) in self.hub.repos:
            raise Reply({"error": "You already created this repo", "url": url}, 409)
        private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
        settings = {key: wanted[key] for key in ("sdk", "variables", "secrets") if key in wanted}
        self.hub.create(name, kind, private, **settings)
        return {"url": url, "name": name}

    def add_to_space(self, name, what):
        self.find("spaces", name, write=True).settings.setdefault(what, []).append(self.json())

    def check_auth(self, kind, name, write):
        self.find(kind, name, write=bool(write))

    def validate_card(self):
        text = self.json()["content"]
        match = re.match(r"---\n(.*?\n)?---\n", text, re.S)
        try:
            yaml.safe_load(match.group(1) or "" if match else "")
        except yaml.YAMLError as error:
            raise Reply({"errors": [{"message": str(error)}], "warnings": []}, 400) from None
        return {"errors": [], "warnings": []}

    def info(self, kind, name, revision=None):
        repo = self.find(kind, name)
        commit = self.commit_at(repo, revision or "main")
        siblings = []
        for path, file in sorted(commit.files.items()):
            siblings.append({"rfilename": path, "size": len(file.content), "blobId": file.oid})
            if file.lfs:
                siblings[-1]["lfs"] = {"sha256": file.sha256, "size": len(file.content), "pointerSize": 134}
        known = {"id": name, "_id": name, "sha": commit.id, "private": repo.private, "lastModified": DATE, "tags": []}
        return {**known, "siblings": siblings, "downloads": 0, "likes": 0, **repo.settings}

    # What lies in a repo

    def tree(self, kind, name, revision, path=None):
        files = self.commit_at(self.find(kind, name), revision).files
        prefix = path.rstrip("/") + "/" if path else ""
        entries = {}
        for file_path, file in sorted(files.items()):
            if not file_path.startswith(prefix):
                continue
            parts = file_path.removeprefix(prefix).split("/")
            for depth in range(1, len(parts)):
                folder = prefix + "/".join(parts[:depth])
                entries[folder] = {"type": "directory", "path": folder, "size": 0, "oid": git_hash(folder.encode())}
            entries[file_path] = file.entry(file_path)
        if prefix and not entries:
            raise refuse(404, "EntryNotFound", f"{path} does not exist")
        if self.query.get("recursive", ["false"])[0].lower() != "true":
            entries = {k: v for k, v in entries.items() if "/" not in k.removeprefix(prefix)}
        start, size = int(self.query.get("cursor", ["0"])[0]), 1000
        page = list(entries.values())[start : start + size]
        if start + size < len(entries):
            more = f"{self.hub.url}{urlsplit(self.path).path}?recursive=true&cursor={start + size}"
            raise Reply(page, Link=f'<{more}>; rel="next"')
        return page

    def paths_info(self, kind, name, revision):
        repo = self.find(kind, name)
        commit = self.commit_at(repo, revision)
        files, query = commit.files, parse_qs(self.body.decode())
        folders = {path.rpartition("/")[0] for path in files} - {""}
        found = []
        for path in query.get("paths", []):
            if path in files:
                last = repo.last_change(commit, path)
                more = {"lastCommit": {"id": last.id, "title": last.title, "date": DATE}}
                found.append(files[path].entry(path) | (more if query.get("expand") == ["true"] else {}))
            elif path in folders:
                found.append({"type": "directory", "path": path, "size": 0, "oid": git_hash(path.encode())})
        return found

    def refs(self, kind, name):
        repo = self.find(kind, name)

        def listed(names, group):
            return [{"name": n, "ref": f"refs/{group}/{n}", "targetCommit": c} for n, c in names.items()]

        return {"branches": listed(repo.branches, "heads"), "tags": listed(repo.tags, "tags"), "converts": []}

    def resolve(self, kind, name, revision, path):
        commit = self.commit_at(self.find(kind, name), revision)
        file = commit.files.get(path)
        if file is None:
            raise refuse(404, "EntryNotFound", f"{path} does not exist")
        if not file.lfs:
            raise self.content(file.content, X_Repo_Commit=commit.id, ETag=f'"{file.oid}"')
        raise Reply(
            b"",
            302,
            Location=f"http://localhost:{self.hub.port}/lfs/{file.sha256}",
            X_Repo_Commit=commit.id,
            X_Linked_Size=len(file.content),
            X_Linked_Etag=f'"{file.sha256}"',
        )

    def content(self, body: bytes, **headers) -> Reply:
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if not match:
            return Reply(body, Accept_Ranges="bytes", **headers)
        first, last = int(match[1]), min(int(match[2] or len(body)), len(body) - 1)
        return Reply(body[first : last + 1], 206, Content_Range=f"bytes {first}-{last}/{len(body)}", **headers)

    # Changing it

    def preupload(self, kind, name, revision):
        repo = self.find(kind, name, write=True)
        files = self.commit_at(repo, revision).files
        answer = []
        for wanted in self.json()["files"]:
            path = wanted["path"]
            lfs = any(fnmatch.fnmatch(path, pattern) for pattern in LFS) or wanted["size"] >= LFS_FROM
            answer.append({"path": path, "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False})
            if path in files:
                answer[-1]["oid"] = files[path].sha256 if files[path].lfs else files[path].oid
        return {"files": answer}

    def lfs_batch(self, kind, name):
        self.find(kind, name, write=True)
        place, objects = f"{self.hub.url}/lfs/", []
        for wanted in self.json()["objects"]:
            objects.append({"oid": wanted["oid"], "size": wanted["size"]})
            if wanted["oid"] not in self.hub.blobs:
                upload, verify = {"href": place + wanted["oid"]}, {"href": f"{place}{wanted['oid']}/verify"}
                objects[-1]["actions"] = {"upload": upload, "verify": verify}
        return {"transfer": "basic", "objects": objects}

    def lfs_put(self, oid):
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise refuse(400, message="the content has another sha256")
        self.hub.blobs[oid] = self.body

    def lfs_verify(self, oid):
        if len(self.hub.blobs.get(oid, b"")) != self.json()["size"]:
            raise refuse(404, message="no such object")

    def lfs_get(self, oid):
        raise self.content(self.hub.blobs[oid], ETag=f'"{oid}"')

    def add_commit(self, kind, name, revision):
        repo = self.find(kind, name, write=True)
        if revision not in repo.branches:
            raise refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        lines = [json.loads(line) for line in self.body.splitlines()]
        header, files = lines[0]["value"], dict(repo.find(revision).files)
        if header.get("parentCommit") not in (None, repo.branches[revision]):
            raise refuse(412, message="A commit has happened since. Please refresh and try again.")
        for line in lines[1:]:
            self.change(files, line["key"], line["value"])
        commit = repo.commit(revision, files, header["summary"])
        return {"commitOid": commit.id, "commitUrl": f"{self.hub.url}/{name}/commit/{commit.id}"}

    def change(self, files: dict[str, File], key: str, value: dict) -> None:
        path = value["path"]
        if key == "file":
            files[path] = File(base64.b64decode(value["content"]), False)
        elif key == "lfsFile":
            if value["oid"] not in self.hub.blobs:
                raise refuse(400, message=f"LFS pointer of {path} points to a file that does not exist")
            files[path] = File(self.hub.blobs[value["oid"]], True)
        elif key == "deletedFile":
            if files.pop(path, None) is None:
                raise refuse(404, "EntryNotFound", f"{path} does not exist")
        elif key == "deletedFolder":
            for file in [file for file in files if file.startswith(path.rstrip("/") + "/")]:
                del files[file]

    def add_branch(self, kind, name, ref):
        repo = self.find(kind, name, write=True)
        if ref in repo.branches:
            raise refuse(409, message="Reference already exists")
        repo.branches[ref] = self.commit_at(repo, self.json().get("startingPoint") or "main").id

    def add_tag(self, kind, name, ref):
        repo, tag = self.find(kind, name, write=True), self.json()["tag"]
        if tag in repo.tags:
            raise refuse(409, message="Tag reference exists already.")
        repo.tags[tag] = self.commit_at(repo, ref).id

    def delete_tag(self, kind, name, ref):
        if self.find(kind, name, write=True).tags.pop(ref, None) is None:
            raise refuse(404, "RevisionNotFound", f"no such ref: {ref}")


API = r"/api/(?P<kind>models|datasets|spaces)/(?P<name>[^/]+/[^/]+)"
WEB = r"/(?:(?P<kind>datasets|spaces)/)?(?P<name>[^/]+/[^/]+)"
ROUTES = [
    (("GET",), r"/api/whoami-v2", Handler.whoami),
    (("POST",), r"/api/repos/create", Handler.create),
    (("POST",), r"/api/validate-yaml", Handler.validate_card),
    (("POST",), r"/api/spaces/(?P<name>[^/]+/[^/]+)/(?P<what>secrets|variables)", Handler.add_to_space),
    (("GET",), API + r"/auth-check(?P<write>/write)?", Handler.check_auth),
    (("GET",), API + r"(?:/revision/(?P<revision>[^/]+))?", Handler.info),
    (("GET",), API + r"/tree/(?P<revision>[^/]+)(?:/(?P<path>.+))?", Handler.tree),
    (("POST",), API + r"/paths-info/(?P<revision>[^/]+)", Handler.paths_info),
    (("GET",), API + r"/refs", Handler.refs),
    (("POST",), API + r"/preupload/(?P<revision>[^/]+)", Handler.preupload),
    (("POST",), API + r"/commit/(?P<revision>[^/]+)", Handler.add_commit),
    (("POST",), API + r"/branch/(?P<ref>[^/]+)", Handler.add_branch),
    (("POST",), API + r"/tag/(?P<ref>[^/]+)", Handler.add_tag),
    (("DELETE",), API + r"/tag/(?P<ref>[^/]+)", Handler.delete_tag),
    (("POST",), WEB + r"\.git/info/lfs/objects/batch", Handler.lfs_batch),
    (("PUT",), r"/lfs/(?P<oid>[0-9a-f]{64})", Handler.lfs_put),
    (("POST",), r"/lfs/(?P<oid>[0-9a-f]{64})/verify", Handler.lfs_verify),
    (("GET", "HEAD"), r"/lfs/(?P<oid>[0-9a-f]{64})", Handler.lfs_get),
    (("GET", "HEAD"), WEB + r"/resolve/(?P<revision>[^/]+)/(?P<path>.+)", Handler.resolve),
]
