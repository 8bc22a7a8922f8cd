"""Writes tiny checkpoints in every quantised format, with the matrices that the format's own package dequantises.

    pip install torch transformers safetensors bitsandbytes compressed-tensors gguf "mlx[cpu]" gptqmodel autoawq
    python make_cases.py [NAME ...]          # all, or the named ones

gptqmodel is built from source: install torch first, then gptqmodel with `--no-build-isolation` and `BUILD_CUDA_EXT=0`. Install
autoawq with `--no-deps`; only its packing functions are used. No GPU is needed.

Each case is one folder: the checkpoint as the package stores it (layer 0 only), expected.tensors with the
dequantised matrices, bit for bit as the package returns them, and case.json with the versions and with the
float64 statistics of ../families/make_cases.py for a model that has these matrices as weights.
"""

import importlib.metadata
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parent / "families"))

from make_cases import figures, first_layer_attention, scramble  # noqa: E402

LLAMA = dict(vocab_size=64, hidden_size=128, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, max_position_embeddings=256, tie_word_embeddings=True, pad_token_id=None,
             bos_token_id=1, eos_token_id=2)
ATTENTION = "model.layers.0.self_attn."
QUERY_AND_KEY = [ATTENTION + "q_proj", ATTENTION + "k_proj"]
EMBEDDING = "model.embed_tokens"


def versions(*packages):
    return {package: importlib.metadata.version(package) for package in ("torch", "transformers", *packages)}


class Case:
    """A model with random weights. A format replaces matrices in `tensors` by the tensors that it stores."""

    def __init__(self, name, model_type="llama", dtype=torch.float16, **settings):
        self.name, self.packages = name, ()
        self.generator = torch.Generator().manual_seed(sum(ord(c) * (i + 1) for i, c in enumerate(name)))
        self.config = AutoConfig.for_model(model_type, **{**LLAMA, **settings})
        self.model = AutoModelForCausalLM.from_config(self.config, attn_implementation="eager").eval()
        scramble(self.model, self.generator)
        self.dtype = dtype
        unused = ("mlp.", "o_proj", ".v_proj", "post_attention", "lm_head", "model.norm")
        self.tensors = {name: tensor.to(dtype).contiguous().clone() for name, tensor in self.model.state_dict().items()
                        if not any(word in name for word in unused)}
        self.expected, self.additions = {}, {}

    def matrix(self, module):
        """Removes a module's weight from the checkpoint and returns it."""
        return self.tensors.pop(module + ".weight")

    def store(self, module, expected, **tensors):
        """Adds tensors to the checkpoint under `module.name`, and records the matrix that the package dequantises."""
        for name, tensor in tensors.items():
            self.tensors[f"{module}.{name}"] = tensor.contiguous()
        assert expected.dtype in (torch.float32, torch.float16, torch.bfloat16)
        self.expected[module + ".weight"] = expected.contiguous()

    def folder(self):
        folder = HERE / self.name
        folder.mkdir(exist_ok=True)
        return folder

    def write(self, checkpoint=True):
        folder = self.folder()
        if checkpoint:
            save_file(self.tensors, folder / "model.safetensors", metadata={"format": "pt"})
            self.config.architectures = [type(self.model).__name__]
            self.config.dtype = str(self.dtype).removeprefix("torch.")
            written = {**self.config.to_dict(), **self.additions}
            (folder / "config.json").write_text(json.dumps(written, indent=1) + "\n")
        save_file(self.expected, folder / "expected.tensors")
        weights = {name: tensor.double() for name, tensor in {**self.tensors, **self.expected}.items()}
        self.model.double()
        missing, _ = self.model.load_state_dict(weights, strict=False)
        assert not [name for name in missing if "layers.0.self_attn" in name and ".v_proj" not in name and ".o_proj" not in name]
        ids = torch.randint(3, self.config.vocab_size, (61,), generator=self.generator).tolist()
        ids[0] = 1
        ids[30:42] = ids[4:16]
        expected = figures(first_layer_attention(self.model, ids))
        tolerances = dict(proportion_rel=1e-5, variance_rel=2e-5, ds_t_abs=4e-6, block_abs=2e-6, abs_floor=1e-12)
        case = dict(name=self.name, model_type=self.config.model_type, versions=versions(*self.packages), S=len(ids),
                    input_ids=ids, expected=expected, tolerances=tolerances)
        (folder / "case.json").write_text(json.dumps(case, separators=(",", ":")) + "\n")
        size = sum(path.stat().st_size for path in folder.iterdir())
        strength = sum(expected["proportion_per_head"]) / len(expected["proportion_per_head"])
        print(f"{self.name}: {size} bytes, strength {strength:.3f}")


def gptq(name, bits, group_size, act_order=False, v2=False, dtype=torch.float16):
    """Packs, converts zero points and dequantises with gptqmodel. In version 1, a zero point of 0 borrows from its neighbour."""
    from types import SimpleNamespace

    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module, convert_gptq_v2_to_v1_format_module
    case = Case(name, dtype=dtype)
    case.packages = ("gptqmodel",)
    for module in QUERY_AND_KEY:
        weight = case.matrix(module)
        outputs, inputs = weight.shape
        size = group_size if group_size > 0 else inputs
        groups = torch.arange(inputs) // size
        if act_order:
            groups = groups[torch.randperm(inputs, generator=case.generator)]
        most = 2 ** bits - 1
        scales, zeros = torch.zeros(outputs, inputs // size), torch.zeros(outputs, inputs // size)
        for group in range(inputs // size):
            part = weight[:, groups == group].float()
            low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
            if group == 0:
                low[::5] = 0
            scales[:, group] = ((high - low) / most).to(dtype).float()
            zeros[:, group] = (-low / scales[:, group]).round().clamp(0, most)
        layer = TorchLinear(bits=bits, group_size=group_size, sym=False, desc_act=act_order, in_features=inputs,
                            out_features=outputs, bias=False)
        linear = torch.nn.Linear(inputs, outputs, bias=False, dtype=torch.float32)
        linear.weight.data = weight.float()
        layer.pack_original(linear, scales, zeros, groups.to(torch.int32))
        layer.scales = layer.scales.to(dtype)
        layer.qzero_format(format=2)
        settings = SimpleNamespace(bits=bits, pack_dtype=torch.int32)
        if not v2:
            convert_gptq_v2_to_v1_format_module(layer, settings)
        stored = dict(qweight=layer.qweight.clone(), qzeros=layer.qzeros.clone(), scales=layer.scales.clone(),
                      g_idx=layer.g_idx.to(torch.int32).clone())
        if not v2:
            convert_gptq_v1_to_v2_format_module(layer, bits, torch.int32)
        if not act_order and bits == 8:
            stored.pop("g_idx")
        dequantised = layer.eval().dequantize_weight().T
        assert dequantised.dtype == dtype
        assert (dequantised.float() - weight.float()).abs().median() < 0.5 / most
        case.store(module, dequantised, **stored)
    case.additions["quantization_config"] = dict(
        quant_method="gptq", bits=bits, group_size=group_size, desc_act=act_order, sym=False,
        checkpoint_format="gptq_v2" if v2 else "gptq")
    case.write()



def awq(name, group_size):
    """Packs like autoawq's WQLinear_GEMM, dequantises with its `dequantize_gemm`."""
    from awq.utils.packing_utils import dequantize_gemm
    case = Case(name)
    case.packages = ("autoawq",)
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def pack(codes):
        packed = torch.zeros(codes.shape[0], codes.shape[1] // 8, dtype=torch.int32)
        for place, column in enumerate(order):
            packed |= codes[:, column::8].to(torch.int32) << (4 * place)
        return packed

    for module in QUERY_AND_KEY:
        weight = case.matrix(module)
        outputs, inputs = weight.shape
        grouped = weight.float().reshape(outputs, inputs // group_size, group_size)
        low, high = grouped.amin(2), grouped.amax(2)
        scales = ((high - low) / 15).half()
        zeros = (-low / scales.float()).round().clamp(0, 15)
        codes = (grouped / scales.float()[:, :, None] + zeros[:, :, None]).round().clamp(0, 15).reshape(outputs, inputs)
        stored = dict(qweight=pack(codes.T), qzeros=pack(zeros.T), scales=scales.T.contiguous())
        dequantised = dequantize_gemm(*stored.values(), 4, group_size).T
        assert dequantised.dtype == torch.float16
        assert (dequantised.float() - weight.float()).abs().max() < 0.1
        case.store(module, dequantised, **stored)
    case.additions["quantization_config"] = dict(quant_method="awq", bits=4, group_size=group_size, zero_point=True,
                                                 version="gemm", modules_to_not_convert=None)
    case.write()


def bitsandbytes_4bit(name, kind, double, dtype, blocksize=64):
    """Stores the packed weight and the tensors of its quantisation state, as `Params4bit` does."""
    from bitsandbytes.functional import QuantState, dequantize_4bit, quantize_4bit
    case = Case(name, dtype=dtype)
    case.packages = ("bitsandbytes",)
    for module in QUERY_AND_KEY:
        weight = case.matrix(module)
        codes, state = quantize_4bit(weight, blocksize=blocksize, quant_type=kind, compress_statistics=double)
        saved = {f"weight.{key}": value for key, value in state.as_dict(packed=True).items()}
        loaded = QuantState.from_dict(state.as_dict(packed=True), device=torch.device("cpu"))
        dequantised = dequantize_4bit(codes, loaded)
        assert dequantised.dtype == dtype
        case.store(module, dequantised, weight=codes, **saved)
    case.additions["quantization_config"] = dict(
        quant_method="bitsandbytes", load_in_4bit=True, load_in_8bit=False, bnb_4bit_quant_type=kind,
        bnb_4bit_use_double_quant=double, bnb_4bit_compute_dtype=str(dtype).removeprefix("torch."),
        bnb_4bit_quant_storage="uint8", llm_int8_skip_modules=None)
    case.write()


def bitsandbytes_int8(name):
    """Stores rows of int8 with their largest absolute value, `SCB`, as `Linear8bitLt` does."""
    from bitsandbytes.functional import int8_vectorwise_dequant, int8_vectorwise_quant
    case = Case(name)
    case.packages = ("bitsandbytes",)
    for module in QUERY_AND_KEY:
        codes, largest, _ = int8_vectorwise_quant(case.matrix(module))
        dequantised = int8_vectorwise_dequant(codes, largest)
        assert dequantised.dtype == torch.float32
        case.store(module, dequantised, weight=codes, SCB=largest, weight_format=torch.tensor(0, dtype=torch.uint8))
    case.additions["quantization_config"] = dict(quant_method="bitsandbytes", load_in_4bit=False, load_in_8bit=True,
                                                 llm_int8_threshold=6.0)
    case.write()


def float8(weight, rows, columns):
    """Returns codes and scales of blocks of `rows` by `columns`, the last ones cut at the edges of the matrix."""
    grid = [-(-size // block) for size, block in zip(weight.shape, (rows, columns))]
    codes, scales = torch.empty_like(weight, dtype=torch.float8_e4m3fn), torch.empty(grid)
    for i in range(grid[0]):
        for j in range(grid[1]):
            part = (slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns))
            scales[i, j] = weight[part].float().abs().max() / 448
            codes[part] = (weight[part].float() / scales[i, j]).to(torch.float8_e4m3fn)
    return codes, scales


def fp8(name, block, scale_type=torch.float32):
    """Stores whole blocks, or one scale for the matrix; dequantises with the transformers library."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize
    case = Case(name, dtype=torch.bfloat16)
    for module in QUERY_AND_KEY:
        weight = case.matrix(module)
        codes, scales = float8(weight, *(block or weight.shape))
        scales = scales.to(scale_type)
        stored = scales if block else scales.reshape(())
        case.store(module, Fp8Dequantize(None)._dequantize_one(codes, stored), weight=codes, weight_scale_inv=stored)
    case.additions["quantization_config"] = dict(quant_method="fp8", activation_scheme="dynamic", fmt="e4m3",
                                                 weight_block_size=block)
    case.write()


def fp8_deepseek(name):
    """Stores DeepSeek-V3's blocks of 128 by 128, cut at the edges of the matrix; `weight_dequant` of its published conversion
    multiplies in float32. Transformers 5 supports whole blocks only."""
    case = Case(name, model_type="deepseek_v3", dtype=torch.bfloat16, hidden_size=160, num_attention_heads=10,
                num_key_value_heads=10, head_dim=4, q_lora_rank=136, kv_lora_rank=24, qk_nope_head_dim=12,
                qk_rope_head_dim=4, v_head_dim=12, moe_intermediate_size=16, n_routed_experts=2, num_experts_per_tok=1,
                n_group=1, topk_group=1, first_k_dense_replace=1, n_shared_experts=1)
    for module in ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"]:
        codes, scales = float8(case.matrix(ATTENTION + module), 128, 128)
        rows, columns = codes.shape
        spread = scales.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
        case.store(ATTENTION + module, codes.float() * spread, weight=codes, weight_scale_inv=scales)
    case.additions["quantization_config"] = dict(quant_method="fp8", activation_scheme="dynamic", fmt="e4m3",
                                                 weight_block_size=[128, 128])
    case.write()


def compressed(name, strategy, kind="float", bits=8, symmetric=True, group_size=None, dtype=torch.bfloat16,
               packed=False, block=None):
    """Compresses and decompresses with compressed-tensors."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams
    case = Case(name, dtype=dtype)
    case.packages = ("compressed-tensors",)
    arguments = QuantizationArgs(num_bits=bits, type=kind, strategy=strategy, symmetric=symmetric,
                                 group_size=group_size, block_structure=block)
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
    layout = "pack-quantized" if packed else f"{kind}-quantized"
    compressor = BaseCompressor.get_value_from_registry(layout)
    for module in QUERY_AND_KEY:
        weight = case.matrix(module)
        rows, columns = weight.shape
        shape = {"tensor": (1, 1, rows, columns), "channel": (rows, 1, 1, columns),
                 "group": (rows, columns // (group_size or columns), 1, group_size),
                 "block": block and (rows // block[0], columns // block[1], *block)}[strategy]
        parts = weight.reshape(shape[0], shape[2], shape[1], shape[3]).transpose(1, 2)
        scale, zero = calculate_qparams(parts.amin((2, 3)), parts.amax((2, 3)), arguments)
        if strategy == "tensor":
            scale, zero = scale.reshape(1), zero.reshape(1)
        state = dict(weight=weight, weight_scale=scale.to(dtype))
        if not symmetric:
            state["weight_zero_point"] = zero.to(torch.int8)
        stored = compressor.compress(state, scheme)
        dequantised = compressor.decompress(stored, scheme)["weight"]
        assert dequantised.dtype == dtype and (dequantised.float() - weight.float()).abs().max() < 0.1
        case.store(module, dequantised, **stored)
    group = dict(targets=["Linear"], weights=arguments.model_dump(mode="json"), input_activations=None,
                 output_activations=None)
    case.additions["quantization_config"] = dict(
        quant_method="compressed-tensors", format=layout, quantization_status="compressed", ignore=["lm_head"],
        config_groups=dict(group_0=group))
    case.write()


def mlx(name, bits, group_size, dtype, embedding_bits=None):
    """Quantises and dequantises matrices and the embedding with mlx on the CPU."""
    import mlx.core as mx
    import numpy
    case = Case(name, dtype=dtype)
    case.packages = ("mlx",)
    types = {torch.float16: mx.float16, torch.bfloat16: mx.bfloat16, torch.float32: mx.float32}
    settings = dict(group_size=group_size, bits=bits)

    def back(array):
        if array.dtype == mx.uint32:
            return torch.from_numpy(numpy.array(array).view(numpy.int32)).view(torch.uint32)
        return torch.from_numpy(numpy.array(array.astype(mx.float32))).to(dtype)

    with mx.stream(mx.cpu):
        for module in [*QUERY_AND_KEY, EMBEDDING]:
            bits_here = embedding_bits if embedding_bits and module == EMBEDDING else bits
            if bits_here != bits:
                settings[module] = dict(group_size=group_size, bits=bits_here)
            weight = mx.array(case.matrix(module).float().numpy()).astype(types[dtype])
            codes, scales, biases = mx.quantize(weight, group_size=group_size, bits=bits_here)
            dequantised = mx.dequantize(codes, scales, biases, group_size=group_size, bits=bits_here)
            assert dequantised.dtype == types[dtype]
            case.store(module, back(dequantised), weight=back(codes), scales=back(scales), biases=back(biases))
    case.additions["quantization"] = case.additions["quantization_config"] = settings
    case.write()


def gguf_blocks(matrix, kind, generator):
    """Returns a matrix as blocks of a type: quantised by gguf, or for types that it cannot quantise, random codes and small scales."""
    import gguf
    import numpy
    if not kind.name.endswith("_K"):
        return gguf.quantize(matrix, kind)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rows = matrix.shape[0] * matrix.shape[1] // block
    blocks = torch.randint(0, 256, (rows, size), generator=generator, dtype=torch.uint8).numpy()
    scales = (torch.rand(rows, 2, generator=generator) * 4e-4 + 1e-4).half().numpy().view(numpy.uint8)
    offset = {"Q2_K": 80, "Q3_K": 108, "Q4_K": 0, "Q5_K": 0, "Q6_K": 208}[kind.name]
    width = 4 if kind.name in ("Q2_K", "Q4_K", "Q5_K") else 2
    blocks[:, offset:offset + width] = scales[:, :width]
    return blocks.reshape(matrix.shape[0], -1)


def gguf_case(name, types, model_type="llama", architecture=None, with_config=False, frequencies=None, metadata=(),
              **settings):
    """Writes a file with gguf's writer, like llama.cpp's conversion (queries and keys of `llama` in the order of its rotary
    embedding, norms of Gemma with 1 added). gguf dequantises it, and the transformers library restores the order."""
    import gguf
    import numpy
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor
    architecture = architecture or model_type
    case = Case(name, model_type=model_type, dtype=torch.float32, **{"hidden_size": 256, **settings})
    case.packages = ("gguf",)
    config = case.config
    types = dict(zip((EMBEDDING, *QUERY_AND_KEY, ATTENTION + "qkv_proj"), (*types, types[1])))
    names = gguf.get_tensor_name_map({value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}[architecture], 1)
    writer = gguf.GGUFWriter(case.folder() / "model.gguf", architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_rope_freq_base(config.to_dict().get("rope_parameters", {}).get("rope_theta", 10000.0))
    writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_bos_token_id(1)
    writer.add_token_list([f"<{index}>" for index in range(config.vocab_size)])
    for method, *arguments in metadata:
        getattr(writer, method)(*arguments)
    if frequencies is not None:
        writer.add_tensor("rope_freqs.weight", numpy.array(frequencies, dtype=numpy.float32))
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=config.to_dict())
    for hf_name, tensor in list(case.tensors.items()):
        array = tensor.numpy()
        stored = names.get_name(hf_name.removesuffix(".weight").removesuffix(".bias")) + "." + hf_name.split(".")[-1]
        if architecture == "llama" and ("q_proj" in hf_name or "k_proj" in hf_name):
            heads = config.num_attention_heads if "q_proj" in hf_name else config.num_key_value_heads
            array = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        if architecture.startswith("gemma") and "norm" in hf_name:
            array = array + numpy.float32(1)
        if array.ndim == 1:
            writer.add_tensor(stored, array)
            back = array
        else:
            kind = gguf.GGMLQuantizationType[types[hf_name.removesuffix(".weight")]]
            blocks = gguf_blocks(array, kind, case.generator)
            writer.add_tensor(stored, blocks, raw_dtype=kind)
            back = gguf.dequantize(blocks, kind)
        weight = torch.from_numpy(numpy.ascontiguousarray(processor.process(back, stored).weights))
        if architecture == "gemma" and "norm" in hf_name:
            weight = weight - 1
        if weight.ndim == 2:
            case.store(hf_name.removesuffix(".weight"), weight)
        else:
            case.tensors[hf_name] = weight
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if with_config:
        config.architectures = [type(case.model).__name__]
        config.save_pretrained(case.folder())
    case.write(checkpoint=False)


half, bf16, f32 = torch.float16, torch.bfloat16, torch.float32
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64, rope_theta=10000.0)
LINEAR = dict(rope_type="linear", factor=4.0, rope_theta=10000.0)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, rope_theta=10000.0)


def llama3_factors(head_dim):
    """Computes with the transformers library what llama.cpp's conversion writes as `rope_freqs`."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    config = AutoConfig.for_model("llama", **{**LLAMA, "head_dim": head_dim, "rope_parameters": LLAMA3})
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 10000.0 ** -(torch.arange(0, head_dim, 2).float() / head_dim)
    return (plain / scaled).tolist()


FORMS = {
    "gptq_2bit": lambda name: gptq(name, 2, 32),
    "gptq_3bit": lambda name: gptq(name, 3, 32),
    "gptq_4bit": lambda name: gptq(name, 4, 32),
    "gptq_4bit_act_order": lambda name: gptq(name, 4, 32, act_order=True),
    "gptq_4bit_v2": lambda name: gptq(name, 4, 64, v2=True, dtype=torch.bfloat16),
    "gptq_8bit": lambda name: gptq(name, 8, -1),
    "awq_4bit": lambda name: awq(name, 64),
    "bitsandbytes_nf4": lambda name: bitsandbytes_4bit(name, "nf4", False, bf16),
    "bitsandbytes_nf4_double": lambda name: bitsandbytes_4bit(name, "nf4", True, half),
    "bitsandbytes_fp4": lambda name: bitsandbytes_4bit(name, "fp4", False, f32, blocksize=128),
    "bitsandbytes_fp4_double": lambda name: bitsandbytes_4bit(name, "fp4", True, bf16),
    "bitsandbytes_int8": bitsandbytes_int8,
    "fp8_blocks": lambda name: fp8(name, [32, 32]),
    "fp8_blocks_deepseek_v3": fp8_deepseek,
    "fp8_one_scale": lambda name: fp8(name, None, bf16),
    "compressed_float_tensor": lambda name: compressed(name, "tensor"),
    "compressed_float_channel": lambda name: compressed(name, "channel", dtype=f32),
    "compressed_float_block": lambda name: compressed(name, "block", block=[32, 32]),
    "compressed_int8_channel": lambda name: compressed(name, "channel", kind="int"),
    "compressed_packed_int4": lambda name: compressed(name, "group", "int", 4, group_size=32, packed=True),
    "compressed_packed_int4_zeros": lambda name: compressed(
        name, "group", "int", 4, symmetric=False, group_size=64, packed=True, dtype=half),
    "compressed_packed_int8": lambda name: compressed(name, "channel", "int", packed=True),
    "mlx_2bit": lambda name: mlx(name, 2, 32, half),
    "mlx_3bit": lambda name: mlx(name, 3, 64, bf16),
    "mlx_4bit": lambda name: mlx(name, 4, 64, bf16),
    "mlx_5bit": lambda name: mlx(name, 5, 64, half),
    "mlx_6bit": lambda name: mlx(name, 6, 128, half),
    "mlx_8bit": lambda name: mlx(name, 8, 64, f32),
    "mlx_mixed": lambda name: mlx(name, 4, 32, bf16, embedding_bits=6),
    "gguf_f16": lambda name: gguf_case(name, ("F16", "F16", "F32"), hidden_size=64),
    "gguf_bf16": lambda name: gguf_case(name, ("BF16", "BF16", "BF16"), hidden_size=64),
    "gguf_q8_0_q4_0_q4_1": lambda name: gguf_case(name, ("Q8_0", "Q4_0", "Q4_1"), hidden_size=64),
    "gguf_q4_0_q5_0_q5_1": lambda name: gguf_case(name, ("Q4_0", "Q5_0", "Q5_1"), hidden_size=64),
    "gguf_q6_k_q4_k_q5_k": lambda name: gguf_case(name, ("Q6_K", "Q4_K", "Q5_K"), vocab_size=40, head_dim=8),
    "gguf_q2_k_q3_k_q2_k": lambda name: gguf_case(name, ("Q2_K", "Q3_K", "Q2_K"), vocab_size=40, head_dim=8),
    "gguf_llama_bias_config": lambda name: gguf_case(
        name, ("Q8_0", "Q8_0", "Q8_0"), with_config=True, hidden_size=64, attention_bias=True, rope_parameters=YARN),
    "gguf_llama_frequencies": lambda name: gguf_case(
        name, ("Q8_0", "Q4_0", "Q4_0"), hidden_size=64, rope_parameters=LLAMA3, frequencies=llama3_factors(16)),
    "gguf_llama_linear": lambda name: gguf_case(
        name, ("Q8_0", "Q4_0", "Q4_0"), hidden_size=64, rope_parameters=LINEAR,
        metadata=[("add_rope_scaling_type", __import__("gguf").RopeScalingType.LINEAR),
                  ("add_rope_scaling_factor", 4.0)]),
    "gguf_qwen2_yarn": lambda name: gguf_case(
        name, ("Q8_0", "Q4_0", "Q5_0"), "qwen2", hidden_size=64, rope_parameters=YARN,
        metadata=[("add_rope_scaling_type", __import__("gguf").RopeScalingType.YARN),
                  ("add_rope_scaling_factor", 4.0), ("add_rope_scaling_orig_ctx_len", 64)]),
    "gguf_qwen3": lambda name: gguf_case(name, ("Q8_0", "Q8_0", "Q8_0"), "qwen3", hidden_size=64),
    "gguf_gemma": lambda name: gguf_case(name, ("Q8_0", "Q8_0", "Q8_0"), "gemma", hidden_size=64),
    "gguf_gemma3_config": lambda name: gguf_case(
        name, ("Q8_0", "Q8_0", "Q8_0"), "gemma3_text", "gemma3", with_config=True, hidden_size=64,
        query_pre_attn_scalar=16, sliding_window=40),
    "gguf_phi3_config": lambda name: gguf_case(
        name, ("Q4_0", "Q5_1", "Q5_1"), "phi3", with_config=True, hidden_size=64),
}

if __name__ == "__main__":
    for name in sys.argv[1:] or FORMS:
        FORMS[name](name)
