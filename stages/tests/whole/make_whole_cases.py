"""Writes tiny random checkpoints of whole models, with the results of the transformers library for a window of each.

    pip install torch transformers safetensors
    python make_whole_cases.py [NAME ...]          # all, or the named ones

Each case is one folder: config.json and model.safetensors (bf16) as the library saves them, and case.json with the token ids
and float64 results of the library's eager attention: `long_nll`, `hidden_rms` after every layer but the last (null) and
before the head, `last_logits`. Weights are upcast exactly, rotary inverse frequencies stay rounded to float32, everything else is
float64.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "families"))
from make_cases import float64, scramble  # noqa: E402

SMALL = dict(vocab_size=80, hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256, pad_token_id=None, bos_token_id=1, eos_token_id=2)
FALCON = dict(vocab_size=80, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, bos_token_id=1, eos_token_id=2)
HALF = dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5)


def small(**changes):
    return {**SMALL, **changes}


# name: (model type, settings)
CASES = {
    "cohere_qk_norm": ("cohere", small(hidden_size=32, use_qk_norm=True, attention_bias=True, logit_scale=0.3)),
    "falcon_one_norm": ("falcon", dict(FALCON, new_decoder_architecture=True, num_kv_heads=2, bias=True,
                                       num_ln_in_parallel_attn=1)),
    "falcon_shared_key": ("falcon", FALCON),
    "falcon_two_norms": ("falcon", dict(FALCON, new_decoder_architecture=True, num_kv_heads=2)),
    "gemma": ("gemma", small(head_dim=8, hidden_act="gelu")),
    "gemma3_by_layer_type": ("gemma3_text", small(
        num_hidden_layers=3, head_dim=8, sliding_window=30, query_pre_attn_scalar=8,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        rope_parameters=dict(full_attention=dict(rope_type="linear", factor=4.0, rope_theta=1e6),
                             sliding_attention=dict(rope_type="default", rope_theta=1e4)))),
    "glm4": ("glm4", small(head_dim=8)),
    "gpt2_scaled_by_layer": ("gpt2", dict(vocab_size=80, n_embd=24, n_layer=2, n_head=4, n_positions=256, bos_token_id=1,
                                          eos_token_id=2, scale_attn_by_inverse_layer_idx=True)),
    "gpt_neox_sequential": ("gpt_neox", dict(
        vocab_size=80, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=256, use_parallel_residual=False, attention_bias=False, rope_parameters=HALF)),
    "llama_dynamic": ("llama", small(hidden_size=32, max_position_embeddings=40, mlp_bias=True, rope_parameters=dict(
        rope_type="dynamic", factor=2.0, rope_theta=1e4))),
    "mixtral_sliding": ("mixtral", small(hidden_size=32, num_local_experts=4, num_experts_per_tok=2, sliding_window=30)),
    "olmo_clip": ("olmo", small(hidden_size=32, clip_qkv=0.4)),
    "phi_qk_norm": ("phi", small(hidden_size=32, qk_layernorm=True, partial_rotary_factor=0.5)),
    "qwen2_upper_layers_slide": ("qwen2", small(hidden_size=32, num_hidden_layers=3, use_sliding_window=True,
                                                sliding_window=20, max_window_layers=2)),
    "seed_oss": ("seed_oss", small(head_dim=8, attention_out_bias=True, mlp_bias=True)),
    "stablelm_parallel": ("stablelm", small(hidden_size=32, use_parallel_residual=True, qk_layernorm=True,
                                            partial_rotary_factor=0.5)),
}
TOKENS = 230  # more than a block of rows and a tile of keys


def make(name):
    model_type, settings = CASES[name]
    generator = torch.Generator().manual_seed(sum(ord(c) * (i + 1) for i, c in enumerate(name)))
    experts = dict(experts_implementation="eager") if "num_local_experts" in settings else {}
    config = AutoConfig.for_model(model_type, **settings)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", **experts).eval()
    scramble(model, generator)
    folder = HERE / name
    config.dtype = "bfloat16"
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    ids = torch.randint(3, config.vocab_size, (TOKENS,), generator=generator)
    model, read = model.double(), []
    model.get_output_embeddings().register_forward_pre_hook(lambda _module, inputs: read.append(inputs[0]))
    with torch.no_grad(), float64():
        output = model(ids[None], output_hidden_states=True, use_cache=False)
    logits = output.logits[0]
    assert logits.dtype == torch.float64
    losses = -torch.log_softmax(logits, -1)[torch.arange(TOKENS - 1), ids[1:]]
    rms = [state.pow(2).mean().sqrt().item() for state in [*output.hidden_states[:-1], read[0]]]
    case = dict(name=name, model_type=model_type, transformers_version=transformers.__version__,
                torch_version=torch.__version__, input_ids=ids.tolist(), long_nll=losses.tolist(),
                hidden_rms=[*rms[:-1], None, rms[-1]], last_logits=logits[-1].tolist())
    (folder / "case.json").write_text(json.dumps(case, separators=(",", ":")) + "\n")
    print(f"{name}: {(folder / 'model.safetensors').stat().st_size} bytes, mean loss {losses.mean().item():.3f}")


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        make(name)
