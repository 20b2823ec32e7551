# SPDX-License-Identifier: Apache-2.0
"""Keys of a training config: what they change, measured, and what is said of those that change nothing."""
import json
import random
import shutil

import tensor_files
from asking import Ask, Deviation

# torchtitan's keys that nothing here reaches: (key, a value that asks for something).
IDLE = [
    ("training.dataset", "c4"), ("training.compile", True), ("training.gc_freq", 7), ("training.enable_cpu_offload", True),
    ("training.deterministic", True), ("training.dataloader.num_workers", 4), ("training.dataloader.pin_memory", True),
    ("compile.enable", True), ("compile.backend", "inductor"), ("parallelism.data_parallel_shard_degree", 4),
    ("parallelism.data_parallel_replicate_degree", 2), ("parallelism.fsdp_reshard_after_forward", "never"),
    ("parallelism.enable_async_tensor_parallel", True), ("parallelism.disable_loss_parallel", True),
    ("parallelism.pipeline_parallel_schedule", "GPipe"), ("optimizer.implementation", "foreach"),
    ("checkpoint.async_mode", "async"), ("checkpoint.last_save_model_only", True), ("metrics.enable_wandb", True),
    ("metrics.enable_tensorboard", True), ("profiling.enable_profiling", True), ("profiling.profile_freq", 3),
    ("memory_estimation.enabled", True), ("comm.trace_buf_size", 100), ("activation_checkpoint.early_stop", True),
    ("activation_checkpoint.selective_ac_option", "op"), ("validation.dataset", "c4_validation"),
    ("mx.mxfp8_dim1_cast_kernel_choice", "cuda"), ("float8.enable_fsdp_float8_all_gather", True), ("float8.emulate", True),
    ("mx.recipe_name", "mxfp8"), ("float8.recipe_name", "rowwise"), ("mx.filter_fqns", ["output"]), ("mx.wgrad_with_hp", True),
    ("model.use_flex_attn", True), ("quantize.wgrad_with_hp", True), ("checkpoint.interval", 3), ("checkpoint.keep_latest_k", 4),
    ("validation.freq", 2), ("validation.steps", 3),
]
# What is not built: an error that names it.
UNBUILT = [
    ("parallelism.tensor_parallel_degree", 2), ("parallelism.pipeline_parallel_degree", 2), ("parallelism.context_parallel_degree", 4),
    ("optimizer.early_step_in_backward", True), ("optimizer.name", "Muon"), ("training.mixed_precision_reduce", "bfloat16"),
    ("training.dtype", "bfloat16"), ("checkpoint.exclude_from_loading", ["x"]), ("checkpoint.create_seed_checkpoint", True),
    ("checkpoint.enable_first_step_checkpoint", True), ("model.norm_type", "layernorm"), ("float8.moe_fqns_prototype", ["experts"]),
    ("training.stepps", 3), ("trainin.steps", 3), ("training.steps", 0), ("comm.mode", "fake"), ("model.converters", ["int4"]),
    ("validation.local_batch_size", 7), ("mx.filter_fqn", ["output"]),
]
# What changes the run: the losses are others than without it.
LIVE = [
    ("training.seed", 5), ("training.seq_len", 8), ("training.local_batch_size", 1), ("training.global_batch_size", 4),
    ("training.max_norm", 0.01), ("training.mixed_precision_param", "float32"), ("optimizer.lr", 0.05), ("optimizer.beta1", 0.1),
    ("optimizer.beta2", 0.2), ("optimizer.eps", 0.1), ("optimizer.weight_decay", 30.0), ("lr_scheduler.warmup_steps", 3),
    ("lr_scheduler.decay_ratio", 0.3), ("lr_scheduler.decay_type", "cosine"), ("lr_scheduler.min_lr_factor", 0.9),
    ("quantize.recipe", "int8dq"), ("quantize.recipe", "fp8dq"), ("model.converters", ["mx"]), ("model.converters", ["float8"]),
    ("model.norm_eps", 0.1), ("model.rope_theta", 100.0), ("model.attn_mask_type", "causal"), ("debug.seed", 9),
    ("model.enable_weight_tying", True),
]


def base(folder, model):
    r = random.Random(1)
    (folder / "text.jsonl").write_text("\n".join(json.dumps({"text": "".join(r.choice("abcdef gh") for _ in range(60))})
                                                 for _ in range(60)))
    return {
        "job": {"dump_folder": str(folder / "dump")},
        "model": {"name": "llama3", "dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_heads": 1, "vocab_size": 64, "hidden_dim": 48,
                  "max_seq_len": 64, "tokenizer_path": str(model)},
        "training": {"dataset_path": str(folder / "text.jsonl"), "local_batch_size": 2, "seq_len": 16, "steps": 6},
        "metrics": {"path": "metrics.jsonl"},
    }


def put(config, key, value):
    """A copy with this key."""
    out = json.loads(json.dumps(config))
    *sections, last = key.split(".")
    at = out
    for section in sections:
        at = at.setdefault(section, {})
    at[last] = value
    return out


def steps(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in rows if "step" in row and "loss" in row]


def trajectory(judge, folder, config):
    """[(loss, norm, rate)] of a run, or None."""
    shutil.rmtree(folder / "dump", ignore_errors=True)
    file = folder / "plain.json"
    file.write_text(json.dumps(config))
    if judge.run("train", file, "--quiet").status != 0:
        return None
    return [(s["loss"], s["grad_norm"], s["rate"]) for s in steps(folder / "dump/metrics.jsonl")]


def asked(folder, config, key, value, as_option):
    """The command's arguments: the key in the file, or as an option."""
    file = folder / "train.json"
    if as_option:
        words = ",".join(value) if isinstance(value, list) else json.dumps(value).strip('"')
        file.write_text(json.dumps(config))
        return [file, f"--{key}={words}"]
    file.write_text(json.dumps(put(config, key, value)))
    return [file]


def idle(folder, config, key, value, as_option):
    see = lambda ran: [Deviation(f"{key} has no effect", (key, key.split(".")[-1]), False)]
    return Ask("training keys", f"{key} {json.dumps(value)}", ["plan", *asked(folder, config, key, value, as_option)], see, (key,))


def unbuilt(folder, config, key, value, as_option):
    see = lambda ran: [Deviation(f"{key} is passed over", (key,))]
    return Ask("training keys", f"{key} {json.dumps(value)}", ["train", *asked(folder, config, key, value, as_option), "--quiet"], see,
               (key, key.split(".")[-1], key.split(".")[0]), json=False)


def live(judge, folder, config, key, value, as_option):
    plain = trajectory(judge, folder, config)

    def see(ran):
        rows = [(s["loss"], s["grad_norm"], s["rate"]) for s in steps(folder / "dump/metrics.jsonl")]
        if [r[:2] for r in rows] == [r[:2] for r in plain]:
            return [Deviation(f"{key} changes no loss", (key,))]
        return []

    return Ask("training keys", f"{key} {json.dumps(value)}", ["train", *asked(folder, config, key, value, as_option), "--quiet"], see,
               (key, str(value)), json=False, out=folder / "dump")


def schedule(judge, r, folder, config):
    """Rates and number of steps, by torchtitan's formula."""
    lr, warm, count, least = r.choice([1e-3, 5e-3]), r.choice([1, 3]), r.choice([5, 8]), r.choice([0.0, 0.2])
    ratio = 0.5
    for key, value in (("optimizer.lr", lr), ("lr_scheduler.warmup_steps", warm), ("training.steps", count),
                       ("lr_scheduler.min_lr_factor", least), ("lr_scheduler.decay_ratio", ratio)):
        config = put(config, key, value)
    file = folder / "train.json"
    file.write_text(json.dumps(config))

    def see(ran):
        decay = max(1, round(count * ratio))
        if warm + decay > count:
            decay = count - warm
        stable = count + 1 - warm - decay
        want = []
        for step in range(count):
            if step < warm:
                factor = (step + 1) / warm
            elif step < warm + stable:
                factor = 1.0
            else:
                factor = least + (1 - least) * (1 - (step + 1 - warm - stable) / decay)
            want.append(lr * factor)
        got = [s["rate"] for s in steps(folder / "dump/metrics.jsonl")]
        if len(got) != count:
            return [Deviation(f"{len(got)} steps, not {count}", ("never",))]
        if any(abs(a - b) > 1e-6 * lr for a, b in zip(got, want)):
            return [Deviation(f"rates {got}, not {want}", ("never",))]
        return []

    return Ask("training keys", f"lr {lr}, warm-up {warm}, steps {count}", ["train", file, "--quiet"], see, json=False, out=folder / "dump")


def written(judge, r, folder, config):
    """Checkpoints and the exported model."""
    interval, kind = r.choice([2, 3]), r.choice(["float32", "bfloat16", "float16"])
    for key, value in (("checkpoint.enable", True), ("checkpoint.interval", interval), ("checkpoint.last_save_in_hf", True),
                       ("checkpoint.export_dtype", kind), ("checkpoint.keep_latest_k", 0)):
        config = put(config, key, value)
    file = folder / "train.json"
    file.write_text(json.dumps(config))

    def see(ran):
        names = {p.name for p in (folder / "dump/checkpoint").iterdir()}
        missing = [i for i in range(interval, 7, interval) if not any(n.endswith(f"-{i:08}") for n in names)]
        found = [Deviation(f"no checkpoint of steps {missing}: {sorted(names)}", ("never",))] if missing else []
        files = sorted((folder / "dump/checkpoint/model").rglob("*.safetensors"))
        want = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}[kind]
        types = {t.dtype for f in files for n, t in tensor_files.read(f)[0].items() if n.startswith("model.") or n == "lm_head.weight"}
        return found if types == {want} else found + [Deviation(f"exported as {types}, not {want}", ("never",))]

    return Ask("training keys", f"checkpoint.interval {interval}, export_dtype {kind}", ["train", file, "--quiet"], see, json=False,
               out=folder / "dump")


def filters(judge, r, folder, config):
    """Which layers a converter's filter keeps, in the plan."""
    part, hf = r.choice([("output", "lm_head"), ("attention.wk", "k_proj"), ("feed_forward", "mlp")])
    config = put(put(config, "model.converters", ["float8"]), "float8.recipe_name", "rowwise")
    config = put(config, "float8.filter_fqns", [part])
    file = folder / "train.json"
    file.write_text(json.dumps(config))

    def see(ran):
        for layer in ran.json["layers"]:
            if layer["role"] == "embed":
                continue
            if layer["asked"].startswith("fp8") == (hf in layer["name"]):
                return [Deviation(f"{layer['name']}: {layer['asked']} with the filter {part}", ("never",))]
        return []

    return Ask("training keys", f"float8.filter_fqns {part}", ["plan", file], see)


def make_asks(judge, r, model, source, folder, turn):
    if model.config["vocab_size"] < 64:
        return
    config = base(folder, source)
    config["model"]["vocab_size"] = model.config["vocab_size"]
    as_option = r.random() < 0.5
    for i in range(6):
        key, value = IDLE[(6 * (turn // 2) + i) % len(IDLE)]
        yield idle(folder, config, key, value, as_option)
    for i in range(3):
        key, value = UNBUILT[(3 * (turn // 2) + i) % len(UNBUILT)]
        yield unbuilt(folder, config, key, value, as_option)
    for i in range(3):
        yield live(judge, folder, config, *LIVE[(3 * (turn // 2) + i) % len(LIVE)], as_option)
    yield [schedule, written, filters][turn % 3](judge, r, folder, config)
