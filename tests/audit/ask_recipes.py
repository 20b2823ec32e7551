# SPDX-License-Identifier: Apache-2.0
"""Recipes of other tools, each field varied: what they mean there, and what Nibble stores.

A fate is what becomes of a variation: a recipe's name (every layer is stored so), or one of
  Said(recipe, needle)     stored so, and a setting names what is other than asked; --strict refuses it
  Met(recipe, needle)      stored so, and a setting says that the purpose is met in another way
  Refused(needle)          an error that names it
"""
import dataclasses
import json

import formulas
from ask_values import see_stored, wanted_by
from asking import Ask, Deviation


@dataclasses.dataclass
class Said:
    recipe: str
    needle: str
    grave = True


@dataclasses.dataclass
class Met(Said):
    grave = False


@dataclasses.dataclass
class Refused:
    needle: str


def typed(type, **data):
    return {"_type": type, "_data": data}


def dtype(name):
    return {"_type": "torch.dtype", "_data": name}


def named(type, name):
    return {"_type": type, "_data": name}


ROW, TENSOR, AXIS = typed("PerRow", dim=-1), typed("PerTensor"), typed("PerAxis", axis=0)
SYM, ASYM = named("MappingType", "SYMMETRIC"), named("MappingType", "ASYMMETRIC")
CLIPS = named("MappingType", "SYMMETRIC_NO_CLIPPING_ERR")
HQQ = named("IntxChooseQParamsAlgorithm", "HQQ_SCALE_ONLY")


def group(n):
    return typed("PerGroup", group_size=n)


# Config, version, what every variation has, and (field, value, fate) for each.
TORCHAO = [
    ("Int8WeightOnlyConfig", 2, {}, [
        (None, None, "int8wo"),
        ("group_size", 32, "int8wo-g32"),
        ("granularity", ROW, "int8wo"),
        ("granularity", TENSOR, "int8wo-tensor"),
        ("granularity", group(32), "int8wo-g32"),
        ("granularity", typed("PerBlock", block_size=[1, 32]), Refused("PerBlock")),
        ("granularity", AXIS, "int8wo"),
        ("granularity", typed("PerAxis", axis=1), Refused("PerAxis")),
        ("set_inductor_config", False, Met("int8wo", "set_inductor_config")),
        ("bits", 3, Refused("bits")),
    ]),
    ("Int8DynamicActivationInt8WeightConfig", 2, {}, [
        (None, None, "int8dq"),
        ("act_mapping_type", ASYM, "int8dq-actasym"),
        ("act_mapping_type", CLIPS, Refused("SYMMETRIC_NO_CLIPPING_ERR")),
        ("granularity", TENSOR, Said("int8dq-tensor", "activations")),
        ("granularity", [TENSOR, ROW], Said("int8dq", "activations")),
        ("granularity", [ROW, TENSOR], "int8dq-tensor"),
        ("reduce_range", True, Refused("reduce_range")),
        ("weight_only_decode", True, Refused("weight_only_decode")),
        ("layout", typed("SemiSparseLayout"), Said("int8dq", "SemiSparseLayout")),
        ("set_inductor_config", False, Met("int8dq", "set_inductor_config")),
    ]),
    ("Int8StaticActivationInt8WeightConfig", 1, {}, [
        ("act_quant_scale", 0.5, Refused("activation scale")),
        (None, None, Refused("--calibrate")),
    ]),
    ("Int8DynamicActivationIntxWeightConfig", 2, {"weight_dtype": dtype("int4"), "weight_granularity": group(32)}, [
        (None, None, "8da4w"),
        ("weight_granularity", group(16), "8da4w-g16"),
        ("weight_granularity", AXIS, "8da4w-row"),
        ("weight_mapping_type", ASYM, "8da4w-asym"),
        ("weight_mapping_type", CLIPS, Refused("SYMMETRIC_NO_CLIPPING_ERR")),
        ("act_mapping_type", SYM, "8da4w-actsym"),
        ("weight_dtype", dtype("int8"), "int8dq-g32-actasym"),
        ("weight_dtype", dtype("int3"), Refused("int3")),
        ("weight_scale_dtype", dtype("float32"), ("8da4w", "F32")),
        ("weight_scale_dtype", dtype("bfloat16"), ("8da4w", "BF16")),
        ("weight_scale_dtype", dtype("float64"), Refused("float64")),
        ("intx_choose_qparams_algorithm", HQQ, Refused("HQQ_SCALE_ONLY")),
        ("intx_packing_format", named("IntxPackingFormat", "UNPACKED_TO_INT8"), "8da4w"),
        ("intx_packing_format", named("IntxPackingFormat", "OPAQUE_ATEN_KLEIDIAI"), Met("8da4w", "OPAQUE_ATEN_KLEIDIAI")),
    ]),
    ("Int8DynamicActivationInt4WeightConfig", 1, {}, [
        (None, None, "8da4w"),
        ("group_size", 16, "8da4w-g16"),
        ("mapping_type", ASYM, "8da4w-asym"),
        ("act_mapping_type", SYM, "8da4w-actsym"),
        ("layout", typed("MarlinQQQLayout"), Met("8da4w", "MarlinQQQLayout")),
    ]),
    ("Int4WeightOnlyConfig", 2, {"group_size": 32}, [
        (None, None, "int4wo"),
        ("group_size", 16, "int4wo-g16"),
        ("group_size", 7, "int4wo-g7"),
        ("int4_packing_format", named("Int4PackingFormat", "PLAIN"), "int4wo"),
        ("int4_packing_format", named("Int4PackingFormat", "PRESHUFFLED"), Met("int4wo", "PRESHUFFLED")),
        ("int4_packing_format", named("Int4PackingFormat", "TILE_PACKED_TO_4D"), Met("int4wo-tinygemm", "TILE_PACKED_TO_4D")),
        ("int4_packing_format", named("Int4PackingFormat", "MARLIN_SPARSE"), Refused("MARLIN_SPARSE")),
        ("int4_packing_format", named("Int4PackingFormat", "PLAIN_INT32"), Refused("PLAIN_INT32")),
        ("int4_choose_qparams_algorithm", named("Int4ChooseQParamsAlgorithm", "HQQ"), Refused("HQQ")),
        ("int4_tile_packed_ntile", 16, Met("int4wo", "int4_tile_packed_ntile")),
        ("use_hqq", True, Refused("use_hqq")),
        ("zero_point_domain", named("ZeroPointDomain", "INT"), Refused("zero_point_domain")),
        ("preserve_zero", True, Refused("preserve_zero")),
        ("version", 1, "int4wo-tinygemm"),
        ("set_inductor_config", False, Met("int4wo", "set_inductor_config")),
    ]),
    ("IntxWeightOnlyConfig", 2, {"weight_dtype": dtype("int4"), "granularity": group(32)}, [
        (None, None, "int4wo-sym"),
        ("granularity", AXIS, "int4wo-row-sym"),
        ("mapping_type", ASYM, "int4wo-intzero"),
        ("mapping_type", CLIPS, Refused("SYMMETRIC_NO_CLIPPING_ERR")),
        ("scale_dtype", dtype("float32"), ("int4wo-sym", "F32")),
        ("scale_dtype", dtype("float16"), ("int4wo-sym", "F16")),
        ("weight_dtype", dtype("int8"), "int8wo-g32"),
        ("weight_dtype", dtype("int2"), Refused("int2")),
        ("weight_dtype", dtype("uint4"), Refused("uint4")),
        ("intx_choose_qparams_algorithm", HQQ, Refused("HQQ_SCALE_ONLY")),
    ]),
    ("IntxWeightOnlyConfig", 2, {"weight_dtype": dtype("int8")}, [
        (None, None, Said("int8wo", "rows")),
        ("mapping_type", ASYM, "int8wo-asym"),
        ("scale_dtype", dtype("bfloat16"), Refused("scale_dtype")),
    ]),
    ("Float8WeightOnlyConfig", 2, {}, [
        (None, None, "fp8wo"),
        ("granularity", TENSOR, "fp8wo-tensor"),
        ("weight_dtype", dtype("float8_e5m2"), Refused("float8_e5m2")),
        ("set_inductor_config", False, Met("fp8wo", "set_inductor_config")),
    ]),
    ("Float8DynamicActivationFloat8WeightConfig", 2, {"granularity": ROW}, [
        (None, None, "fp8dq"),
        ("granularity", TENSOR, Said("fp8dq-tensor", "activations")),
        ("granularity", None, Said("fp8dq-tensor", "activations")),
        ("granularity", [typed("PerBlock", block_size=[1, 128]), typed("PerBlock", block_size=[128, 128])], Refused("PerBlock")),
        ("activation_dtype", dtype("float8_e5m2"), Refused("float8_e5m2")),
        ("activation_value_lb", 1e-12, Refused("bound")),
        ("activation_value_ub", 9, Refused("bound")),
        ("kernel_preference", named("KernelPreference", "TORCH"), Met("fp8dq", "kernel_preference")),
        ("mm_config", typed("Float8MMConfig", emulate=True, use_fast_accum=False, pad_inner_dim=False), Met("fp8dq", "mm_config")),
        ("packing_format", named("Float8PackingFormat", "SPARSE_CUTLASS"), Said("fp8dq", "SPARSE_CUTLASS")),
    ]),
    ("MXDynamicActivationMXWeightConfig", 1, {"activation_dtype": dtype("float8_e4m3fn"), "weight_dtype": dtype("float8_e4m3fn")}, [
        (None, None, "mxfp8"),
        ("scaling_mode", named("ScaleCalculationMode", "FLOOR"), "mxfp8-floor"),
        ("scaling_mode", named("ScaleCalculationMode", "EVEN"), Refused("EVEN")),
        ("block_size", 64, Refused("block_size")),
        ("weight_dtype", dtype("float6_e3m2"), Refused("float6_e3m2")),
        ("kernel_preference", named("KernelPreference", "EMULATED"), Met("mxfp8", "kernel_preference")),
    ]),
    ("MXDynamicActivationMXWeightConfig", 1,
     {"activation_dtype": dtype("float4_e2m1fn_x2"), "weight_dtype": dtype("float4_e2m1fn_x2")}, [
         (None, None, "mxfp4dq"),
         ("scaling_mode", named("ScaleCalculationMode", "FLOOR"), "mxfp4dq-floor"),
         ("activation_dtype", dtype("float8_e4m3fn"), Refused("float4_e2m1fn_x2")),
     ]),
    ("NVFP4WeightOnlyConfig", 1, {}, [
        (None, None, "nvfp4"),
        ("use_dynamic_per_tensor_scale", False, "nvfp4-block"),
    ]),
    ("NVFP4DynamicActivationNVFP4WeightConfig", 1, {}, [
        (None, None, Said("nvfp4dq", "activations")),
        ("use_dynamic_per_tensor_scale", False, "nvfp4dq-block"),
        ("use_triton_kernel", False, Met("nvfp4dq", "use_triton_kernel")),
        ("step", "prepare", Said("nvfp4dq", "step")),
    ]),
    ("Float8DynamicActivationInt4WeightConfig", 1, {}, [(None, None, Refused("Float8DynamicActivationInt4WeightConfig"))]),
    ("SmoothQuantConfig", 1, {}, [(None, None, Refused("SmoothQuantConfig"))]),
    ("Int4WeightOnlyConfg", 2, {}, [(None, None, Refused("Int4WeightOnlyConfg"))]),
]

# torchchat's --quantize, and each argument varied.
TORCHCHAT = [
    ({"linear:int8": {"groupsize": 0}}, "int8wo"),
    ({"linear:int8": {"groupsize": 32}}, "int8wo-g32"),
    ({"linear:int8": {"bitwidth": 4, "groupsize": 32}}, "int4wo-sym"),
    ({"linear:int8": {"bitwidth": 2, "groupsize": 0}}, Refused("2 bits")),
    ({"linear:int8": {"groupsize": 0, "node_type": "input"}}, Refused("input")),
    ({"linear:int4": {"groupsize": 32}}, "int4wo-tinygemm"),
    ({"linear:int4": {"groupsize": 64}}, "int4wo-g64-tinygemm"),
    ({"linear:int4": {}}, Refused("groupsize")),
    ({"linear:int4": {"groupsize": 32, "inner_k_tiles": 8}}, Refused("inner_k_tiles")),
    ({"linear:a8w4dq": {"groupsize": 32}}, "8da4w"),
    ({"linear:a8wxdq": {"bitwidth": 4, "groupsize": 32, "has_weight_zeros": False}}, "8da4w"),
    ({"linear:a8wxdq": {"bitwidth": 4, "groupsize": 32, "has_weight_zeros": True}}, "8da4w-asym"),
    ({"linear:a8wxdq": {"bitwidth": 8, "groupsize": 32, "has_weight_zeros": False}}, "int8dq-g32-actasym"),
    ({"linear:a8wxdq": {"bitwidth": 8, "groupsize": 32, "has_weight_zeros": True}}, Refused("has_weight_zeros")),
    ({"linear:a8wxdq": {"bitwidth": 5, "groupsize": 32}}, Refused("5 bits")),
    ({"linear:a8wxdq": {"groupsize": 32}}, Refused("bitwidth")),
    ({"linear:afpwx": {"bitwidth": 4, "groupsize": 32}}, Said("int4wo", "zero")),
    ({"linear:afpwx": {"bitwidth": 3, "groupsize": 32}}, Refused("3 bits")),
    ({"linear:gptq": {"groupsize": 32}}, Refused("linear:gptq")),
    ({"linear:int8": {"groupsize": 0}, "precision": {"dtype": "fp32"}}, Said("int8wo", "precision")),
    ({"linear:int8": {"groupsize": 0}, "executor": {"accelerator": "cpu"}}, Said("int8wo", "executor")),
    ({"linear:int8": {"groupsize": 0}, "linear:int4": {"groupsize": 32}}, Said("int8wo", "linear:int4")),
    ({"linear:int8": {"groupsize": 0}, "precision": {"dtype": "fp7"}}, Refused("fp7")),
]

# torchtitan's sections of a training config, as a recipe.
TORCHTITAN = [
    ({"recipe_name": "mxfp8", "filter_fqns": []}, "mxfp8-floor", None),
    ({"recipe_name": "mxfp8_rceil", "filter_fqns": ["output"]}, "mxfp8", "lm_head"),
    ({"recipe_name": "mxfp8_cublas"}, "mxfp8-floor", "lm_head"),
    ({"recipe_name": "rowwise", "filter_fqns": []}, "fp8dq", None),
    ({"recipe_name": "rowwise", "filter_fqns": ["mlp"]}, "fp8dq", "mlp"),
    ({"recipe_name": "rowwise", "filter_fqns": ["attention.wq"]}, "fp8dq", "q_proj"),
    ({"recipe_name": "tensorwise", "filter_fqns": []}, Refused("tensorwise"), None),
    ({"recipe_name": "rowwise", "filter_fqns": ["router.gate"]}, Refused("router.gate"), None),
    ({"recipe_name": "rowwise", "filter_fqns": ["auto_filter_small_kn"]}, Refused("auto_filter_small_kn"), None),
    ({"recipe_name": "blockwise", "filter_fqns": []}, Refused("blockwise"), None),
    ({"recipe_name": "rowwise", "filter_fqns": [], "emulate": True}, Met("fp8dq", "emulate"), None),
]


def torchao_variants():
    for config, version, common, variants in TORCHAO:
        for field, value, fate in variants:
            data = dict(common)
            if field is not None:
                data[field] = value
            words = config if field is None else f"{config}({field}={json.dumps(value)[:60]})"
            yield words, {"_type": config, "_version": version, "_data": data}, fate


def ask_of(klass, words, file, fate, model, source, folder, kept=()):
    """A recipe in a file, and its fate. kept: modules that it keeps."""
    out = folder / "out"
    command = ["quantize", source, out, "--recipe", file, "--format", "nibble"]
    if isinstance(fate, Refused):
        see = lambda ran: [Deviation("it ran, and nothing says what was done instead", (fate.needle,))]
        return Ask(klass, words, command, see, (fate.needle,), out=out)
    recipe = fate if isinstance(fate, str) else fate[0] if isinstance(fate, tuple) else fate.recipe
    spec = formulas.spec_of(recipe)
    spec.keeps_head = False
    if isinstance(fate, tuple):
        spec.scale_type = fate[1]

    def see(ran):
        wanted = {n: None if n in kept else s for n, s in wanted_by(model, spec).items()}
        found = see_stored(model, out, wanted, ("nothing says it",))
        if isinstance(fate, Said):
            found.append(Deviation(f"{fate.needle} is not done just so", (fate.needle,), fate.grave))
        return found

    return Ask(klass, words, command, see, out=out)


def take(items, turn, count):
    return [items[(turn * count + i) % len(items)] for i in range(count)]


def make_asks(judge, r, model, source, folder, turn):
    file = folder / "recipe.json"

    def write(value):
        file.write_text(json.dumps(value))
        return file

    for words, config, fate in take(list(torchao_variants()), turn, 4):
        if turn % 3 == 1:  # as Hugging Face's config has it
            config = {"quant_method": "torchao", "quant_type": {"default": config}, "modules_to_not_convert": []}
        yield ask_of("torchao's config", words, write(config), fate, model, source, folder)
    (chat, fate), = take(TORCHCHAT, turn, 1)
    yield ask_of("torchchat's JSON", json.dumps(chat), write(chat), fate, model, source, folder)
    (titan, fate, part), = take(TORCHTITAN, turn, 1)
    kept = {n for n in model.linears() if part and part in n}
    yield ask_of("torchtitan's filters", json.dumps(titan), write(titan), fate, model, source, folder, kept)
