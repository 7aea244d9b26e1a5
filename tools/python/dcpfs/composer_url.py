# SPDX-License-Identifier: Apache-2.0
"""Composer's paths and object stores as URLs that dcpfs reads itself, and the bar of bytes of such a load."""
from typing import Any, Callable, Optional

from composer.utils import dist
from composer.utils.file_helpers import extract_path_from_symlink, maybe_create_object_store_from_uri, parse_uri
from composer.utils.object_store import GCSObjectStore, S3ObjectStore
from tqdm import tqdm

from .shown import shown


def url_of(path: str, object_store: Any, sharded: bool) -> Optional[str]:
    """The URL by which dcpfs itself reads @path; None: a file, or an object store that only Composer can read."""
    store, name = object_store, path
    if store is None and path.startswith(("s3://", "gs://")):
        store, name = maybe_create_object_store_from_uri(path), parse_uri(path)[2]
    if store is None and path.startswith(("hf://", "https://") if sharded else "hf://"):
        return path
    if not isinstance(store, (S3ObjectStore, GCSObjectStore)):
        return None
    name = name if sharded else name.format(rank=0, local_rank=0, node_rank=0)
    if not sharded and not name.endswith(".symlink") and not _has(store, name) and _has(store, name + ".symlink"):
        name += ".symlink"
    while name.endswith(".symlink"):
        name = parse_uri(extract_path_from_symlink(name, object_store=store))[2]
    return str(store.get_uri(name))


def _has(object_store: Any, name: str) -> bool:
    try:
        object_store.get_object_size(name)
    except FileNotFoundError:
        return False
    return True


def bytes_bar(url: str) -> Callable[[int, int], None]:
    """A bar of bytes, for Checkpoint(progress=)."""
    bar = tqdm(desc=f"Loading {shown(url)}", unit="B", unit_scale=True, disable=dist.get_local_rank() != 0)

    def move(done: int, total: int) -> None:
        bar.total = total
        bar.update(max(done - bar.n, 0))
        if done == total:
            bar.close()
    return move
