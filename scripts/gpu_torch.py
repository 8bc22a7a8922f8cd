#!/usr/bin/env python3
"""First-layer attention of one window in PyTorch on a GPU, for comparison with longsift's kernels.

  gpu_torch.py [--tokens 4096 8192 32768] [--json FILE] [--beside WINDOWS.jsonl]

LLaMA-3.1-8B geometry: 32 query heads, 8 key heads of 128, random queries and keys. `published` is the loop over heads
of the script published with LongAttn, in float16, without its value product: products, mask, softmax in float32,
cast, far mask, sum and variance, each an S x S tensor. `sdpa` is the forward pass of scaled_dot_product_attention
over the same queries and keys in bfloat16 (with values, which it requires; it returns no scores), once with each
backend by name, since its own choice depends on the version. Times are device times, the median of repeats after a
warm-up, without projections and rotary embeddings. --beside compares with the output of the example `gpu_windows` on
the same GPU, whose times include gather and rotation.
"""
import argparse
import json
import math
import statistics
import sys

HEADS, KEY_HEADS, WIDTH = 32, 8, 128
BACKENDS = ("FLASH_ATTENTION", "CUDNN_ATTENTION")


def milliseconds(torch, work, repeats):
    work()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def published(torch, queries, keys):
    tokens = queries.shape[1]
    far = 3 * (tokens // 4)
    mask = torch.zeros(tokens, tokens, device="cuda")
    mask[tokens - far :, :far] = torch.tril(torch.ones(far, far, device="cuda"))
    causal = torch.full((tokens, tokens), torch.finfo(torch.float16).min, dtype=torch.float16, device="cuda").triu(1)

    def work():
        for head in range(HEADS):
            weights = queries[head] @ keys[head // (HEADS // KEY_HEADS)].T / math.sqrt(WIDTH) + causal
            weights = torch.nn.functional.softmax(weights, dim=-1, dtype=torch.float32).to(torch.float16)
            weights = weights * mask
            weights.sum() / tokens
            weights.var()

    return work


def sdpa(torch, backend, queries, keys, values):
    """Milliseconds with only this backend; None if it does not support the shape."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    try:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return milliseconds(
                torch,
                lambda: torch.nn.functional.scaled_dot_product_attention(
                    queries, keys, values, is_causal=True, enable_gqa=True
                ),
                10,
            )
    except (AttributeError, RuntimeError) as error:
        print(f"{backend}: {error}", file=sys.stderr)
        return None


def print_comparison(path, lines):
    try:
        with open(path, encoding="utf-8") as file:
            windows = [line for line in map(json.loads, file) if "kernel" in line]
    except OSError as error:
        print(f"no comparison: {error}")
        return
    for line in lines:
        for window in windows:
            if window["geometry"] == "LLaMA-3.1-8B" and window["tokens"] == line["tokens"]:
                own = window["gather_ms"] + window["attention_ms"]
                print(
                    f"{line['tokens']:8} tokens: {window['kernel']} {own:9.2f} ms: the published loop takes "
                    f"{line['published_fp16_ms'] / own:.1f} times as long, sdpa "
                    + ", ".join(
                        f"{ms / own:.2f} times ({backend})" for backend, ms in line["sdpa_forward_bf16_ms"].items() if ms
                    )
                )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 8192, 32768])
    parser.add_argument("--json")
    parser.add_argument("--beside")
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("skipped: torch is not installed")
        return 0
    if not torch.cuda.is_available():
        print("skipped: torch found no GPU")
        return 0
    torch.manual_seed(0)
    lines = []
    with torch.no_grad():
        for tokens in arguments.tokens:
            def random(heads, dtype):
                return torch.randn(heads, tokens, WIDTH, device="cuda", dtype=dtype)

            loop = published(torch, random(HEADS, torch.float16), random(KEY_HEADS, torch.float16))
            loop_ms = milliseconds(torch, loop, 3)
            del loop
            torch.cuda.empty_cache()
            queries, keys, values = (random(heads, torch.bfloat16)[None] for heads in (HEADS, KEY_HEADS, KEY_HEADS))
            sdpa_ms = {backend: sdpa(torch, backend, queries, keys, values) for backend in BACKENDS}
            lines.append({"tokens": tokens, "published_fp16_ms": loop_ms, "sdpa_forward_bf16_ms": sdpa_ms})
            by_backend = ", ".join(f"{ms:.2f} ms ({backend})" if ms else f"none ({backend})" for backend, ms in sdpa_ms.items())
            print(f"{tokens:8} tokens: published loop fp16 {loop_ms:9.2f} ms, sdpa forward bf16 {by_backend}", flush=True)
    if arguments.beside:
        print_comparison(arguments.beside, lines)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"torch": torch.__version__, "gpu": torch.cuda.get_device_name(), "windows": lines}, out, indent=1)
    return 0


sys.exit(main())
