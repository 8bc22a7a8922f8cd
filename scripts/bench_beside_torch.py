"""Compares longsift's kernels with PyTorch on one core: the geometry of LLaMA-3.1-8B's first layer.

    cargo build --release -p longsift-kernels --example pairs
    python scripts/bench_beside_torch.py [--tokens 2048,4096,8192] [--heads 32] [--repeats 3]
        [--baseline SCRIPT] [--pairs target/release/examples/pairs] [--markdown]

Needs torch (PyPI). Four variants of torch, each in its own process with one thread and the default allocator:

* published f32, bf16: the per-head loop with whole SxS matrices that LongAttn's code runs (without the values),
* tiled f32, bf16: blocks of 512 rows over the causal columns, the fastest variant with plain torch operations.

torch's seconds are those of the attention and, in a separate column, including the projection of queries and keys,
which it needs for every window. longsift's include the gathering and rotation of table rows, which replace the
projection; its table is computed once per model. All are seconds of processor time, medians over interleaved rounds.
`--heads` below 32 times that many heads and scales the result (torch only). `--baseline` runs another script instead
of torch: `SCRIPT MODE TOKENS THREADS` with modes f32_orig, bf16_orig, f32_tiled, bf16_tiled, `HLIM` heads, one line
of JSON with `attn_cpu_s` and `proj_cpu_s`.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time

QUERY_HEADS, KEY_HEADS, HEAD_DIM, HIDDEN = 32, 8, 128, 4096
MODES = {
    "published f32": "f32_orig",
    "published bf16": "bf16_orig",
    "tiled f32": "f32_tiled",
    "tiled bf16": "bf16_tiled",
}
BLOCK_ROWS = 512


def queries_and_keys(torch, tokens, number):
    """Projects random hidden states and rotates them by position; `[heads, tokens, HEAD_DIM]` each, and seconds."""
    torch.manual_seed(1)
    hidden = torch.randn(tokens, HIDDEN).to(number)
    weights = [
        (torch.randn(heads * HEAD_DIM, HIDDEN) * 1.5 / math.sqrt(HIDDEN)).to(number)
        for heads in (QUERY_HEADS, KEY_HEADS)
    ]
    frequencies = 500_000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angles = torch.outer(torch.arange(tokens, dtype=torch.float32), frequencies).repeat(1, 2)
    cosine, sine = angles.cos().to(number), angles.sin().to(number)

    def project(weight):
        heads = (hidden @ weight.T).view(tokens, -1, HEAD_DIM).transpose(0, 1)
        first, second = heads.chunk(2, dim=-1)
        return (heads * cosine + torch.cat((-second, first), dim=-1) * sine).contiguous()

    project(weights[1])  # warms up the libraries
    started = time.process_time()
    queries, keys = (project(weight) for weight in weights)
    return queries, keys, time.process_time() - started


def published(torch, queries, keys, far):
    """Computes far mass and variance of one head with whole matrices."""
    tokens = queries.shape[0]
    number = queries.dtype
    hidden = torch.full((tokens, tokens), torch.finfo(number).min, dtype=number).triu(1)
    mask = torch.ones(tokens, tokens).tril(-far)
    yield  # masks are made once for all heads
    while True:
        logits = (queries @ keys.T) / math.sqrt(HEAD_DIM) + hidden
        weights = torch.softmax(logits, dim=-1, dtype=torch.float32) * mask
        queries, keys = yield float(weights.sum()) / tokens, float(weights.var())


def tiled(torch, queries, keys, far):
    """Far mass and variance of one head by blocks of rows, each over the columns up to its end."""
    tokens = queries.shape[0]
    yield
    while True:
        mass = square = 0.0
        for start in range(0, tokens, BLOCK_ROWS):
            end = min(start + BLOCK_ROWS, tokens)
            logits = (queries[start:end] @ keys[:end].T).float() / math.sqrt(HEAD_DIM)
            logits[:, start:].masked_fill_(
                torch.ones(end - start, end - start, dtype=torch.bool).triu(1), -math.inf
            )
            if end > far:
                weights = torch.softmax(logits, dim=-1)[:, : end - far].tril(start - far)
                mass += float(weights.sum(dtype=torch.float64))
                square += float(weights.square().sum(dtype=torch.float64))
        entries = tokens * tokens
        queries, keys = yield mass / tokens, (square - mass * mass / entries) / (entries - 1)


def run_torch(mode, tokens):
    """Runs and times the kernel in a torch process; prints one line of JSON."""
    import torch

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    heads = int(os.environ.get("HLIM", QUERY_HEADS))
    number = torch.float32 if mode.startswith("f32") else torch.bfloat16
    queries, keys, projection = queries_and_keys(torch, tokens, number)
    far = tokens - 3 * (tokens // 4)
    way = published if mode.endswith("orig") else tiled
    group = QUERY_HEADS // KEY_HEADS
    run = way(torch, queries[0], keys[0], far)
    next(run)
    started = time.process_time()
    results = [next(run)]
    results += [run.send((queries[head], keys[head // group])) for head in range(1, heads)]
    seconds = (time.process_time() - started) * QUERY_HEADS / heads
    mass = statistics.mean(result[0] for result in results)
    print(json.dumps({"proj_cpu_s": projection, "attn_cpu_s": seconds, "mean_prop": mass}))


def torch_seconds(baseline, mode, tokens, heads):
    """Seconds of the attention and of the projection in one torch process."""
    command = [sys.executable, baseline, mode, str(tokens), "1"]
    if baseline == __file__:
        command = [sys.executable, __file__, "--torch", mode, "--tokens", str(tokens)]
    environment = dict(os.environ, HLIM=str(heads), OMP_NUM_THREADS="1")
    answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    answer = json.loads(answer.stdout.strip().splitlines()[-1])
    return answer["attn_cpu_s"], answer["proj_cpu_s"]


def longsift(pairs, tokens):
    """One window with every kernel: `{name: answer}`."""
    options = ["--json", "--without-portable", "--threads", "1", "--repeats", "1"]
    options += ["--head-dims", str(HEAD_DIM)]
    options += ["--key-heads", str(KEY_HEADS), "--tokens", str(tokens)]
    lines = subprocess.run([pairs, *options], check=True, capture_output=True, text=True).stdout
    answers = [json.loads(line) for line in lines.splitlines()]
    return {answer["kernel"]: answer for answer in answers}


def machine():
    """Name of the processor in Linux."""
    with open("/proc/cpuinfo") as info:
        names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    return names[0]


def table(header, rows, markdown):
    """Prints rows of text under a header."""
    if markdown:
        print("| " + " | ".join(header) + " |")
        print("|" + "---|" * len(header))
        for row in rows:
            print("| " + " | ".join(row) + " |")
        return
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, *rows]:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths)))


def compare(options):
    """Runs all rounds of all sizes and prints the tables."""
    print(f"{machine()}, {time.strftime('%Y-%m-%d')}, one core, {options.repeats} rounds\n")
    for tokens in map(int, options.tokens.split(",")):
        ways, kernels = {name: [] for name in MODES}, {}
        for _ in range(options.repeats):
            for kernel, answer in longsift(options.pairs, tokens).items():
                kernels.setdefault(kernel, []).append(answer)
            for name, mode in MODES.items():
                ways[name].append(torch_seconds(options.baseline, mode, tokens, options.heads))
        median = {
            kernel: statistics.median(answer["processor_seconds"] for answer in answers)
            for kernel, answers in kernels.items()
        }
        share = {
            kernel: statistics.median(answer["share"] for answer in answers)
            for kernel, answers in kernels.items()
        }
        header = [f"{tokens} tokens", "seconds", "with projection"]
        header += [f"÷ {kernel}" for kernel in median]
        rows = []
        for name, times in ways.items():
            attention = statistics.median(time[0] for time in times)
            whole = statistics.median(sum(time) for time in times)
            ratios = [f"{attention / seconds:.1f} ({whole / seconds:.1f})" for seconds in median.values()]
            rows.append([f"torch, {name}", f"{attention:.2f}", f"{whole:.2f}", *ratios])
        for kernel, seconds in median.items():
            cells = [f"{kernel}, {100 * share[kernel]:.0f} % of its limit", f"{seconds:.3f}", "—"]
            rows.append(cells + [f"{seconds / other:.2f}" for other in median.values()])
        table(header, rows, options.markdown)
        print(flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", default="2048,4096,8192")
    parser.add_argument("--heads", type=int, default=QUERY_HEADS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--baseline", default=__file__)
    parser.add_argument("--pairs", default="target/release/examples/pairs")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--torch", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.torch:
        run_torch(options.torch, int(options.tokens))
    else:
        compare(options)


main()
