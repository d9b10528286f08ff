"""Checks that Python's huggingface_hub and Cairn share one cache of models.

Run by `make interop` with huggingface_hub 2.4.0:

    check_downloads.py FAKE_HUB MODEL_FOLDER CAIRN MLX_PYTHON

FAKE_HUB is the program that serves a hub on loopback, MODEL_FOLDER the model that it serves, CAIRN
the program `cairn`, and MLX_PYTHON a Python that has mlx-lm.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

NAME = "owner/name"
FOLDER = "models--owner--name"


def main():
    fake_hub, model, cairn, mlx_python = sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]
    hub = subprocess.Popen(
        [fake_hub, f"{NAME}={model}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    endpoint = hub.stdout.readline().strip()
    os.environ.update(
        HF_ENDPOINT=endpoint, HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_XET="1", NO_PROXY="*"
    )
    try:
        for check in [read_offline, complete_what_python_began, leave_ours_alone, share_the_lock]:
            with tempfile.TemporaryDirectory() as cache:
                check(Path(cache), model, cairn)
                print(f"ok: {check.__name__.replace('_', ' ')}")
        with tempfile.TemporaryDirectory() as folder:
            run_each_others(Path(folder), cairn, mlx_python)
            print("ok: run each others downloads")
    finally:
        hub.stdin.close()
        hub.wait()


def download(cache, cairn):
    environment = dict(os.environ, HF_HUB_CACHE=str(cache))
    command = [cairn, "models", "download", NAME]
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    return Path(output.stdout.decode().strip().splitlines()[-1])


def run_each_others(home, cairn, mlx_python):
    """mlx_lm.generate runs on Cairn's download, Cairn on Python's, and both say the same."""
    from huggingface_hub import snapshot_download

    theirs, ours = home / "python", home / "cairn"
    snapshot_download(NAME, cache_dir=theirs)
    download(ours, cairn)
    question = ["--model", NAME, "--prompt", "hello", "--max-tokens", "24", "--temp", "0"]

    def answer(command, cache):
        offline = dict(os.environ, HF_HUB_CACHE=str(cache), HF_HUB_OFFLINE="1", CAIRN_HOME=str(home))
        del offline["HF_ENDPOINT"]
        output = subprocess.run([*command, *question], env=offline, check=True, stdout=subprocess.PIPE)
        return output.stdout.decode(errors="replace")

    # mlx-lm writes the text between two lines of equals signs, its figures after them.
    text = answer([mlx_python, "-m", "mlx_lm", "generate"], ours).split("==========")[1]
    result = json.loads(answer([cairn, "generate", "--json"], theirs))
    assert result["generation_tokens"] > 0, result
    assert result["text"].strip() == text.strip(), (result["text"], text)


def read_offline(cache, model, cairn):
    """Python finds the whole model without a network, and no fault with the cache."""
    from huggingface_hub import hf_hub_download, scan_cache_dir, snapshot_download

    folder = download(cache, cairn)
    found = Path(snapshot_download(NAME, cache_dir=cache, local_files_only=True))
    assert found == folder, (found, folder)
    compare(folder, model)
    config = hf_hub_download(NAME, "config.json", cache_dir=cache, local_files_only=True)
    assert Path(config) == folder / "config.json"
    scanned = scan_cache_dir(cache)
    assert not scanned.warnings, scanned.warnings
    (repo,) = scanned.repos
    (revision,) = repo.revisions
    assert repo.repo_id == NAME and set(revision.refs) == {"main"}, repo
    # Online, Python has nothing to fetch of what Cairn has fetched.
    before = {path: path.stat().st_mtime_ns for path in (cache / FOLDER / "blobs").iterdir()}
    snapshot_download(NAME, cache_dir=cache, allow_patterns=[path.name for path in folder.iterdir()])
    after = {path: path.stat().st_mtime_ns for path in (cache / FOLDER / "blobs").iterdir()}
    assert before == after


def complete_what_python_began(cache, model, cairn):
    """Cairn completes a download of Python's and leaves Python's partial file."""
    from huggingface_hub import hf_hub_download

    hf_hub_download(NAME, "config.json", cache_dir=cache)
    weights = largest(model)
    partial = cache / FOLDER / "blobs" / f"{sha256(weights)}.deadbeef.incomplete"
    partial.write_bytes(weights.read_bytes()[:1000])
    compare(download(cache, cairn), model)
    assert partial.exists()


def leave_ours_alone(cache, model, cairn):
    """Python downloads beside a partial file of Cairn's, which then takes Python's blob."""
    from huggingface_hub import snapshot_download

    weights = largest(model)
    partial = cache / FOLDER / "blobs" / f"{sha256(weights)}.cairn.incomplete"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    folder = Path(snapshot_download(NAME, cache_dir=cache))
    assert partial.exists()
    compare(folder, model)
    assert download(cache, cairn) == folder
    assert not partial.exists()


def share_the_lock(cache, model, cairn):
    """While Python holds the lock of a blob, Cairn waits for it."""
    from huggingface_hub.utils import WeakFileLock

    lock = cache / ".locks" / FOLDER / f"{sha256(largest(model))}.lock"
    lock.parent.mkdir(parents=True)
    result = []
    with WeakFileLock(lock):
        thread = threading.Thread(target=lambda: result.append(download(cache, cairn)))
        thread.start()
        # Long after the other files: only the lock can hold it up.
        thread.join(timeout=3)
        assert thread.is_alive(), "Cairn did not wait for the lock"
        assert not (cache / FOLDER / "snapshots").exists()
    thread.join()
    compare(result[0], model)


def compare(folder, model):
    for path in model.iterdir():
        if path.suffix in {".json", ".safetensors", ".txt", ".jinja"}:
            assert (folder / path.name).read_bytes() == path.read_bytes(), path.name


def largest(model):
    return max(model.glob("model*.safetensors"), key=lambda path: path.stat().st_size)


def sha256(path):
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


main()
