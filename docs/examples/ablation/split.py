#!/usr/bin/env python3
"""Splits the shared natural corpus into a pool and held-out documents, by family, before anything is selected:

    python3 split.py SHARED LONGSIFT FOLDER

SHARED has `corpora` and `models/mini`. LONGSIFT is the command, whose tokenizer is used to find overlaps. Writes into FOLDER
`pool.parquet`, `pool-good.parquet` (only its good classes), `heldout.parquet` and `split.json` (held-out families, and dropped documents
with the reason).
"""

import hashlib
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from longsift.ablation.overlap import MAX_SHARED, GramSet, largest_shared

SEED = 1
HELDOUT_SHARE = 1 / 4
WINDOW_TOKENS = 1024
CLASSES = ("books", "papers", "code", "docs")
# Junk that was made from a good document: shuffled text and recognition errors.
DERIVED = re.compile(r"^(ocr|sh-[a-z]+)-")


def read_documents(corpora):
    """Returns the natural corpus with its books, papers and code at full length, and the repository of each code document."""
    full, repositories = {}, {}
    for name in ("books", "papers", "code"):
        for row in pq.read_table(corpora / f"{name}.parquet", columns=["data_id", "text", "tags"]).to_pylist():
            full[row["data_id"]] = row["text"]
            repositories.update({row["data_id"]: tag[5:] for tag in row["tags"] if tag.startswith("repo:")})
    documents = pq.read_table(corpora / "natural.parquet", columns=["id", "kind", "origin", "name", "real", "text"]).to_pylist()
    for document in documents:
        if document["real"]:
            document["text"] = full.get(document["name"], document["text"])
    return documents, repositories


def family(document, repositories):
    """Returns the family of a document, which is held out as a whole: a book, a repository, a manual with all its chapters."""
    name = DERIVED.sub("", document["name"])
    if name in repositories:
        return repositories[name]
    if name.startswith("papers-"):
        return "-".join(name.split("-")[:2])
    return document["origin"] if "/" in name else name.split("#")[0]


def rank(name):
    """Returns the sort key of a family or document in a random order."""
    return hashlib.sha256(f"{SEED}:{name}".encode()).digest()


def without_surplus(pool, ids):
    """Returns the pool with at most as many tokens of junk as of good classes; which junk stays is random."""
    room = sum(len(ids[document["id"]]) for document in pool if document["kind"] in CLASSES)
    kept = {document["id"] for document in pool if document["kind"] in CLASSES}
    for document in sorted(pool, key=lambda one: rank(one["id"])):
        if document["kind"] not in CLASSES and len(ids[document["id"]]) <= room:
            kept.add(document["id"])
            room -= len(ids[document["id"]])
    return [document for document in pool if document["id"] in kept]


def held_out_families(documents):
    """Returns a quarter of the families of each good class: those with the smallest hash of seed and name."""
    chosen = set()
    for kind in CLASSES:
        ranked = sorted({document["family"] for document in documents if document["kind"] == kind}, key=rank)
        chosen.update(ranked[: math.ceil(len(ranked) * HELDOUT_SHARE)])
    return chosen


def tokens(longsift, folder, documents):
    """Returns the token ids of every document, by the tokenizer of the arms."""
    write(folder / "all.parquet", documents)
    settings = {
        "input.path": str((folder / "all.parquet").resolve()),
        "stages.tokenize.window_tokens": 1 << 22,
        "stages.tokenize.windows": "whole-document",
        "stages.tokenize.short_documents": "score",
    }
    command = [longsift, "tokens", str(Path(__file__).with_name("random.yaml")), "--ids"]
    command += [f"--set={path}={json.dumps(value)}" for path, value in settings.items()]
    found = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            record = json.loads(line)
            if "ids" in record:
                found[record["id"]] = np.array(record["ids"], dtype=np.int32)
    if process.returncode:
        sys.exit(process.returncode)
    return found


def write(path, documents):
    """Writes documents with the columns that the pipelines read."""
    columns = ("id", "kind", "text")
    table = pa.table({name: pa.array([document[name] for document in documents], pa.large_string()) for name in columns})
    pq.write_table(table, path, row_group_size=64)


def main(shared, longsift, folder):
    folder.mkdir(parents=True, exist_ok=True)
    documents, repositories = read_documents(shared / "corpora")
    for document in documents:
        document["family"] = family(document, repositories)
    families = held_out_families(documents)
    ids = tokens(longsift, folder, documents)
    # A document shorter than a window has no windows.
    documents = [document for document in documents if len(ids.get(document["id"], ())) >= WINDOW_TOKENS]
    heldout = [document for document in documents if document["family"] in families and document["kind"] in CLASSES]
    grams = GramSet([ids[document["id"]] for document in heldout])
    held_ids = {document["id"] for document in heldout}
    pool, dropped = [], []
    for document in documents:
        if document["id"] in held_ids:
            continue
        shared_grams = largest_shared(grams.hits(ids[document["id"]]), WINDOW_TOKENS)
        if document["family"] in families:
            dropped.append({"id": document["id"], "name": document["name"], "why": f"made of the held-out {document['family']}"})
        elif shared_grams > MAX_SHARED:
            why = f"a range of {WINDOW_TOKENS} tokens shares {shared_grams:.1%} of its 13-grams with held-out documents"
            dropped.append({"id": document["id"], "name": document["name"], "why": why})
        else:
            pool.append(document)
    everything, pool = pool, without_surplus(pool, ids)
    write(folder / "pool.parquet", pool)
    write(folder / "pool-good.parquet", [document for document in pool if document["kind"] in CLASSES])
    write(folder / "heldout.parquet", heldout)
    (folder / "all.parquet").unlink()

    def count(chosen):
        return {
            kind: {
                "documents": sum(one["kind"] == kind for one in chosen),
                "tokens": sum(len(ids[one["id"]]) for one in chosen if one["kind"] == kind),
            }
            for kind in sorted({one["kind"] for one in chosen})
        }

    split = {
        "seed": SEED,
        "heldout": count(heldout),
        "pool": count(pool),
        "surplus_junk": len(everything) - len(pool),
        "heldout_families": sorted(families),
        "dropped": dropped,
    }
    (folder / "split.json").write_text(json.dumps(split, indent=1, ensure_ascii=False) + "\n")
    for one in dropped:
        print(f"dropped {one['id']} ({one['name']}): {one['why']}")
    for name, chosen in (("pool", pool), ("held out", heldout)):
        good = [one for one in chosen if one["kind"] in CLASSES]
        print(
            f"{name}: {len(chosen)} documents, {sum(len(ids[one['id']]) for one in chosen) / 1e6:.2f} million tokens, of which "
            f"{sum(len(ids[one['id']]) for one in good) / 1e6:.2f} million of the good classes"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
