"""Writes the tiny random checkpoints of this folder, with the attention statistics that the transformers library computes.

    pip install torch transformers safetensors
    python make_cases.py [NAME ...]          # all, or the named ones
    python make_cases.py --check FOLDER      # compare with a case that another program wrote

Each case is one folder: config.json as the library writes it, the tensors of layer 0 in bf16, and case.json with the
token ids and float64 statistics of the library's eager attention: `proportion_per_head`, `variance_per_head`, `ds_t` (far
mass of each row, mean over heads) and attention between blocks. Weights are upcast exactly, rotary inverse frequencies
stay rounded to float32, everything else is float64.
"""

import json
import math
import re
import sys
from contextlib import contextmanager
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).parent
SMALL = dict(vocab_size=96, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=True, pad_token_id=None,
             bos_token_id=1, eos_token_id=2)
MLA = dict(SMALL, num_key_value_heads=4, q_lora_rank=12, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4,
           v_head_dim=8, moe_intermediate_size=16, n_routed_experts=2, num_experts_per_tok=1, n_group=1, topk_group=1,
           first_k_dense_replace=1, n_shared_experts=1)
GPT = dict(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=128, n_inner=32, bos_token_id=1, eos_token_id=2)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, rope_theta=1e4)


def small(**changes):
    return {**SMALL, **changes}


# name: (model type, settings, tokens)
CASES = {
    "bloom_six_heads": ("bloom", dict(vocab_size=96, hidden_size=48, n_layer=2, n_head=6), 61),
    "cohere2_full_nope": ("cohere2", small(layer_types=["full_attention", "sliding_attention"]), 64),
    "cohere2_sliding": ("cohere2", small(sliding_window=40), 67),
    "cohere_qk_norm": ("cohere", small(use_qk_norm=True, attention_bias=True), 64),
    "deepseek_v2_q_lora": ("deepseek_v2", dict(MLA, attention_bias=True, topk_method="greedy"), 64),
    "deepseek_v3_half_bias": (
        "deepseek_v3",
        dict(MLA, attention_bias=True, rope_interleave=False,
             rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=0.7)), 70),
    "ernie4_5": ("ernie4_5", small(use_bias=True, head_dim=12), 64),
    "ernie4_5_moe": ("ernie4_5_moe", small(moe_intermediate_size=16, moe_num_experts=2, moe_k=1), 64),
    "falcon_one_norm": (
        "falcon",
        dict(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_kv_heads=2,
             num_ln_in_parallel_attn=1, new_decoder_architecture=True), 64),
    "gemma2_full": (
        "gemma2", small(head_dim=12, query_pre_attn_scalar=20, attn_logit_softcapping=3.0,
                        layer_types=["full_attention", "sliding_attention"]), 64),
    "gemma3_full_linear": (
        "gemma3_text",
        small(head_dim=8, query_pre_attn_scalar=8, layer_types=["full_attention", "sliding_attention"],
              rope_parameters=dict(full_attention=dict(rope_type="linear", factor=4.0, rope_theta=1e5),
                                   sliding_attention=dict(rope_type="default", rope_theta=1e3))), 66),
    "glm": ("glm", small(head_dim=8, attention_bias=True), 64),
    "glm4_moe": (
        "glm4_moe", small(head_dim=8, use_qk_norm=True, attention_bias=True, moe_intermediate_size=16,
                          n_routed_experts=2, num_experts_per_tok=1), 64),
    "gpt_bigcode": ("gpt_bigcode", dict(GPT, multi_query=True), 64),
    "gpt_bigcode_all_heads": ("gpt_bigcode", dict(GPT, multi_query=False), 64),
    "gpt_neo": (
        "gpt_neo", dict(vocab_size=96, hidden_size=32, num_layers=2, num_heads=4, intermediate_size=32,
                        max_position_embeddings=128, attention_types=[[["global", "local"], 1]]), 64),
    "gpt_neo_local": (
        "gpt_neo", dict(vocab_size=96, hidden_size=32, num_layers=2, num_heads=4, intermediate_size=32,
                        max_position_embeddings=128, window_size=30, attention_types=[[["local", "global"], 1]]), 64),
    "gpt_neox_no_bias": (
        "gpt_neox", small(attention_bias=False, rotary_pct=0.5, rotary_emb_base=5000), 64),
    "gpt_oss_default_yarn": (
        "gpt_oss", small(head_dim=16, num_local_experts=2, num_experts_per_tok=1,
                         layer_types=["full_attention", "sliding_attention"]), 64),
    "granite": ("granite", small(attention_multiplier=0.7, embedding_multiplier=3.0, attention_bias=True), 64),
    "granitemoe": (
        "granitemoe", small(attention_multiplier=0.2, embedding_multiplier=0.01, num_local_experts=2), 64),
    "granitemoeshared": (
        "granitemoeshared", small(attention_multiplier=0.4, embedding_multiplier=12, num_local_experts=2), 64),
    "hunyuan_alpha": (
        "hunyuan_v1_dense",
        small(head_dim=8, rope_parameters=dict(rope_type="dynamic", alpha=50.0, rope_theta=1e4, factor=1.0)), 64),
    "hunyuan_v1_moe": (
        "hunyuan_v1_moe", small(head_dim=8, num_experts=2, moe_topk=1), 64),
    "internlm3": ("internlm3", small(head_dim=8, attention_bias=True, mlp_bias=True), 64),
    "llama4_nope": (
        "llama4_text",
        small(head_dim=8, no_rope_layers=[0, 1], floor_scale=5, attn_scale=0.6, num_local_experts=2,
              intermediate_size_mlp=32, moe_layers=[]), 64),
    "ministral": ("ministral", small(head_dim=8, sliding_window=33), 64),
    "ministral3": (
        "ministral3",
        small(head_dim=8, rope_parameters=dict(YARN, llama_4_scaling_beta=0.4, mscale=1.0, mscale_all_dim=1.0)), 80),
    "mpt": (
        "mpt", dict(vocab_size=96, d_model=32, n_heads=4, n_layers=2, max_seq_len=128, expansion_ratio=1), 64),
    "mpt_six_heads_clip": (
        "mpt", dict(vocab_size=96, d_model=48, n_heads=6, n_layers=2, max_seq_len=128, expansion_ratio=1,
                    attn_config=dict(clip_qkv=0.8, softmax_scale=0.9)), 64),
    "nemotron": ("nemotron", small(head_dim=8, attention_bias=True), 64),
    "olmo": ("olmo", small(), 64),
    "olmo_clip": ("olmo", small(clip_qkv=0.6, attention_bias=True), 64),
    "olmo3_sliding": ("olmo3", small(sliding_window=40), 64),
    "olmo3_full_yarn": (
        "olmo3",
        small(layer_types=["full_attention", "sliding_attention"],
              rope_parameters=dict(full_attention=YARN,
                                   sliding_attention=dict(rope_type="default", rope_theta=1e3))), 64),
    "olmoe": ("olmoe", small(num_experts=2, num_experts_per_tok=1), 64),
    "opt_350m": (
        "opt", dict(vocab_size=96, hidden_size=32, num_hidden_layers=2, ffn_dim=32, num_attention_heads=4,
                    max_position_embeddings=128, do_layer_norm_before=False, word_embed_proj_dim=20), 64),
    "opt_plain_norm": (
        "opt", dict(vocab_size=96, hidden_size=32, num_hidden_layers=2, ffn_dim=32, num_attention_heads=4,
                    max_position_embeddings=128, layer_norm_elementwise_affine=False, enable_bias=False), 64),
    "persimmon": ("persimmon", {k: v for k, v in SMALL.items() if k != "num_key_value_heads"}, 64),
    "phi_qk_layernorm": ("phi", small(qk_layernorm=True, partial_rotary_factor=0.75), 64),
    "phi3_partial": (
        "phi3", small(rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.75)), 64),
    "phi3_short_factors": (
        "phi3", small(original_max_position_embeddings=128, sliding_window=50,
                      rope_parameters=dict(rope_type="longrope", rope_theta=1e4, short_factor=[1.0, 1.2, 1.4, 1.8],
                                           long_factor=[1.0, 2.0, 3.0, 9.0])), 64),
    "qwen2_moe": (
        "qwen2_moe", small(moe_intermediate_size=16, shared_expert_intermediate_size=16, num_experts=2,
                           num_experts_per_tok=1, use_sliding_window=True, sliding_window=40), 64),
    "qwen3_sliding": (
        "qwen3", small(head_dim=8, use_sliding_window=True, sliding_window=40, max_window_layers=0,
                       attention_bias=True), 64),
    "seed_oss": ("seed_oss", small(head_dim=8), 64),
    "smollm3_nope": ("smollm3", small(no_rope_layers=[0, 1]), 64),
    "stablelm_qk_layernorm": (
        "stablelm", small(qk_layernorm=True, use_qkv_bias=True, partial_rotary_factor=0.5), 64),
    "starcoder2": ("starcoder2", small(), 64),
    "starcoder2_sliding": ("starcoder2", small(sliding_window=30, use_bias=False), 64),
}


@contextmanager
def float64():
    """Makes the library compute everything in float64."""
    tensor, functional = torch.Tensor, torch.nn.functional
    to, to_float, softmax = tensor.to, tensor.float, functional.softmax

    def keep(self, *args, **kwargs):
        if self.dtype == torch.float64:
            args = [a for a in args if a not in (torch.float32, torch.float)]
            if kwargs.get("dtype") == torch.float32:
                kwargs.pop("dtype")
            if not args and not kwargs:
                return self
        return to(self, *args, **kwargs)

    tensor.to = keep
    tensor.float = lambda self: to(self, torch.float64)
    functional.softmax = lambda x, dim=-1, dtype=None, **_: softmax(x, dim=dim)
    try:
        yield
    finally:
        tensor.to, tensor.float, functional.softmax = to, to_float, softmax


class Found(Exception):
    pass


ATTENTION = re.compile(r"(^|\.)(layers|h|blocks)\.0\.(self_attn|attn|attention|self_attention)$")


def first_layer_attention(model, ids):
    """Returns the attention probabilities of layer 0, [heads, tokens, tokens], in float64."""
    modules = [(name, module) for name, module in model.named_modules() if ATTENTION.search(name)]
    (name, module), = modules
    module = getattr(module, "attention", module)
    kept = []

    def hook(_module, _inputs, output):
        kept.append(output[1])
        raise Found

    module.register_forward_hook(hook)
    with torch.no_grad(), float64():
        try:
            model(torch.tensor([ids]), use_cache=False, output_attentions=True)
        except Found:
            pass
    assert kept[0].dtype == torch.float64, kept[0].dtype
    return kept[0][0]


def figures(attention):
    heads, size, _ = attention.shape
    distance = size - 3 * (size // 4)
    rows, columns = torch.arange(size)[:, None], torch.arange(size)[None, :]
    far = attention * (columns <= rows - distance)
    boundaries = [0, size // 3, size // 2, size]
    blocks = [[(attention[:, a:b, c:d].sum() / heads / (b - a)).item()
               for c, d in zip(boundaries, boundaries[1:])] for a, b in zip(boundaries, boundaries[1:])]
    return dict(
        proportion_per_head=(far.sum((1, 2)) / size).tolist(),
        variance_per_head=far.reshape(heads, -1).var(1, unbiased=True).tolist(),
        ds_t=far.sum(2).mean(0).tolist(),
        block_boundaries=boundaries,
        block_attention=blocks,
    )


def scramble(model, generator):
    """Sets random weights with which attention is neither uniform nor one-hot."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() >= 2 and "norm" not in name:
            noise = noise * (0.7 if "wpe" in name or "embed_positions" in name or "emb" in name
                             else 1.6 / math.sqrt(parameter.shape[-1]))
        elif name.endswith("weight"):
            noise = 1 + 0.3 * noise
        else:
            noise = 0.5 * noise
        parameter.data = noise.to(torch.bfloat16)


def make(name):
    model_type, settings, tokens = CASES[name]
    seed = sum(ord(c) * (i + 1) for i, c in enumerate(name))
    generator = torch.Generator().manual_seed(seed)
    config = AutoConfig.for_model(model_type, **settings)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    scramble(model, generator)
    vocabulary = config.vocab_size
    ids = torch.randint(3, vocabulary, (tokens,), generator=generator).tolist()
    ids[0] = 1
    ids[tokens // 2:tokens // 2 + tokens // 5] = ids[4:4 + tokens // 5]
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    wanted = re.compile(r"(^|\.)(layers|h|blocks)\.0\.")
    unused = re.compile(r"lm_head|embed_out|mlp|experts|ffn|\.fc[12]|o_proj|out_proj|c_proj|dense|layers\.[1-9]|h\.[1-9]"
                        r"|blocks\.[1-9]|[._]v_proj|feed_forward|block_sparse|shared|post_|final|project_out|norm_f|ln_f")
    tensors = {k: v.contiguous().clone() for k, v in model.state_dict().items()
               if (wanted.search(k) or "emb" in k or "wte" in k or "wpe" in k or "project_in" in k)
               and not unused.search(k)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config.architectures = [type(model).__name__]
    config.dtype = "bfloat16"
    config.save_pretrained(folder)
    expected = figures(first_layer_attention(model.double(), ids))
    case = dict(name=name, model_type=model_type, transformers_version=transformers.__version__,
                torch_version=torch.__version__, S=tokens, input_ids=ids, expected=expected,
                tolerances=dict(proportion_rel=1e-5, variance_rel=2e-5, ds_t_abs=4e-6, block_abs=2e-6,
                                abs_floor=1e-12))
    (folder / "case.json").write_text(json.dumps(case, separators=(",", ":")) + "\n")
    print(f"{name}: {sum(v.numel() * 2 for v in tensors.values())} bytes, "
          f"strength {sum(expected['proportion_per_head']) / len(expected['proportion_per_head']):.3f}")


def check(folder):
    """Checks that the statistics of another program's case, from its own checkpoint, are reproduced."""
    case = json.loads((folder / "case.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    got = figures(first_layer_attention(model.double(), case["input_ids"]))
    for key in ["proportion_per_head", "variance_per_head", "ds_t"]:
        pairs = zip(got[key], case["expected"][key])
        print(folder.name, key, max(abs(a - b) / max(abs(b), 1e-9) for a, b in pairs))


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] == ["--check"]:
        for argument in arguments[1:]:
            check(Path(argument))
    else:
        for name in arguments or CASES:
            make(name)
