# SPDX-License-Identifier: Apache-2.0
"""Plain Paddle files: paddle.save in every form, the C++ binary form, static programs, and paddle.incubate.distributed.utils.io.

Packages: paddlepaddle==3.3.1 (paddle-plain), or 2.6.2 with 'protobuf<=3.20.3' (paddle-plain-26), and numpy.  Run: python paddle_plain.py
Every file's truth is what paddle.load makes of it; regroup() puts together what one version of dcpfs holds.
"""
import json
import os
import re
import shutil
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from fw_common import ST, entry, fresh, value, write_manifest  # noqa: E402
from paddle_dist import env, from_paddle, install, poison, to_paddle  # noqa: E402

OUT = os.environ.get("GOLDEN", os.path.join(os.path.dirname(HERE), "golden"))
NAMES = {"3.3.1": "paddle-plain", "2.6.2": "paddle-plain-26"}


def net(paddle, seed=3):
    import paddle.nn as nn
    paddle.seed(seed)

    class Tied(nn.Layer):
        def __init__(s):
            super().__init__()
            s.emb = nn.Embedding(11, 6)
            s.conv = nn.Conv3D(2, 3, (3, 1, 2))
            s.lin = nn.Linear(6, 7)
            s.bn = nn.BatchNorm1D(7)
            s.head = s.emb                       # tied

        def forward(s, i):
            return s.bn(s.lin(s.emb(i)))
    return Tied()


def trained(paddle):
    m = net(paddle)
    opt = paddle.optimizer.AdamW(paddle.optimizer.lr.StepDecay(0.01, 3), parameters=[p for n, p in m.named_parameters() if not n.startswith("conv")])
    for i in range(3):
        (m(paddle.to_tensor(np.arange(5) * (i + 1) % 11)) ** 2).mean().backward()
        opt.step()
        opt.clear_grad()
        opt._learning_rate.step()
    return m, opt


def word(t):
    return str(t.dtype).split(".")[-1]


def js(o):
    try:
        return json.loads(json.dumps(o))
    except Exception:
        return None


def walk(paddle, o, path, tens, objs):
    if isinstance(o, paddle.Tensor) or type(o).__name__ in ("LoDTensor", "DenseTensor"):
        if isinstance(o, paddle.Tensor):
            dt = word(o)
            a = from_paddle(paddle, o, dt)
        else:
            a = np.array(o)
            dt = {"<u2": "bfloat16"}.get(a.dtype.str) or a.dtype.name
        tens.append(entry("/".join(map(str, path)) or "value", path, dt, a))
    elif isinstance(o, np.ndarray):
        if o.dtype.name in ST:
            tens.append(entry("/".join(map(str, path)) or "value", path, o.dtype.name, o, numpy=True))
        else:
            objs.append({"key": "/".join(map(str, path)), "path": [str(p) for p in path], "json": None, "type": "numpy.ndarray " + str(o.dtype)})
    elif isinstance(o, dict):
        for k, v in o.items():
            walk(paddle, v, path + [k], tens, objs)
    elif isinstance(o, (list, tuple)):
        for i, v in enumerate(o):
            walk(paddle, v, path + [i], tens, objs)
    else:
        objs.append({"key": "/".join(map(str, path)), "path": [str(p) for p in path], "json": js(o), "type": type(o).__name__})


# ------------------------------------------------------------------------------------------------ dist_save ranks
def rank_main(ckpt):
    paddle, dist = env()
    from paddle.distributed import fleet
    s = fleet.DistributedStrategy()
    s.hybrid_configs = {"dp_degree": 1, "mp_degree": 1, "pp_degree": 1, "sharding_degree": 2}
    fleet.init(is_collective=True, strategy=s)
    rank = dist.get_rank()
    from paddle.incubate.distributed.utils.io import save
    m, opt = trained(paddle)
    sd = m.state_dict()
    full = opt.state_dict()
    names = [p.name for n, p in m.named_parameters()]
    mine = {}                                     # what sharding stage 1 leaves each rank with: whole tensors, by parameter
    for k, v in full.items():
        if isinstance(v, paddle.Tensor):
            owner = [i for i, n in enumerate(names) if k.startswith(n)]
            if owner and owner[0] % 2 == rank:
                mine[k] = v
    mine["LR_Scheduler"] = full["LR_Scheduler"]
    mw = {n: to_paddle(paddle, value("mw", n, "float32", (5, i + 1)), "float32") for i, n in enumerate(names) if i % 2 == rank}
    mine["master_weights"] = mw
    # 1 not gathered: every rank its own path
    save(mine, f"{ckpt}/not_gathered/opt_rank{rank}.pdopt")
    save(sd, f"{ckpt}/not_gathered/params_rank{rank}.pdparams")
    # 2 gathered to rank 0, in very small groups
    save(mine, f"{ckpt}/gathered0/opt_g{rank}.pdopt", gather_to=0, state_type="opt", max_grouped_size="1K")
    # 3 gathered to both ranks
    save(mine, f"{ckpt}/gathered01/opt_g{rank}.pdopt", gather_to=[0, 1], state_type="opt", max_grouped_size=300)
    # 4 params: every rank writes whatever gather_to says
    save(sd, f"{ckpt}/gathered0/params_g{rank}.pdparams", gather_to=[0], state_type="params")
    # 5 save_for_auto_inference
    try:
        from paddle.incubate.distributed.utils.io import save_for_auto_inference
        save_for_auto_inference(f"{ckpt}/auto/infer", m)
    except Exception as e:
        print("save_for_auto_inference:", type(e).__name__, str(e)[:300])
    dist.barrier()


# ------------------------------------------------------------------------------------------------ one process
def write_all(paddle, ckpt):
    m, opt = trained(paddle)
    new = not paddle.__version__.startswith("2.")
    made = []

    def put(rel, how, fn):
        p = f"{ckpt}/{rel}"
        os.makedirs(os.path.dirname(p), exist_ok=True)
        try:
            fn(p)
            made.append((rel, how))
        except Exception as e:
            print("cannot make", rel, type(e).__name__, " ".join(str(e).split())[-200:])
    for pr in (2, 3, 4) + ((5,) if new else ()):
        put(f"p{pr}/model.pdparams", "load", lambda p: paddle.save(m.state_dict(), p, protocol=pr))
        put(f"p{pr}/model.pdopt", "load", lambda p: paddle.save(opt.state_dict(), p, protocol=pr))
    mk = lambda k, d, s: to_paddle(paddle, value("plain", k, d, s), d)  # noqa: E731
    dts = [d for d in ST if new or not d.startswith("float8")]
    types = {}
    for d in dts:
        try:
            types[f"t.{d}"] = mk(d, d, (5, 3))
        except Exception as e:
            print("no", d, str(e)[-80:])
    odd = dict(types)
    odd.update({"scalar": mk("s", "float32", ()), "one": mk("o", "float64", (1,)), "empty": paddle.zeros([0, 3]), "conv5d": mk("c", "float32", (5, 2, 3, 1, 2)),
                "with/slash": mk("sl", "int32", (2, 2)), "sp ace": mk("sp", "int64", (3,)), "Größe.権重.🙂": mk("u", "float32", (2, 3)),
                "k" * 300: mk("k", "float32", (2,)), "transposed": mk("tr", "float32", (4, 3)).transpose([1, 0])})
    for pr in (2, 4):
        put(f"odd/all_p{pr}.pdparams", "load", lambda p: paddle.save(odd, p, protocol=pr))
    nested = {"model": dict(m.state_dict()), "step": 17, "loss": 0.25, "name": "run é", "lr": [0.1, 0.01], "flag": True, "none": None,
              "more": {"list": [mk("n1", "float32", (2, 3)), {"deep": mk("n2", "int64", (3,)), "np": np.arange(6, dtype=np.float64).reshape(2, 3)}],
                       "tuple": (1, 2, mk("n3", "float16", (2,))), "int keys": {0: mk("n4", "float32", (2,)), 7: "seven"}}}
    for pr in (2, 3, 4):
        put(f"nested/p{pr}.pdz", "load", lambda p: paddle.save(nested, p, protocol=pr))
    put("single/tensor.pdtensor", "load", lambda p: paddle.save(mk("single", "bfloat16", (7, 3)), p))
    put("single/list.pd", "load", lambda p: paddle.save([mk("l0", "float32", (3,)), mk("l1", "bool", (4,))], p))
    put("numpy_only/arrays.pd", "load_np", lambda p: paddle.save({"a": np.arange(12, dtype=np.float32).reshape(3, 4), "f": np.asfortranarray(np.arange(6.).reshape(2, 3))}, p))
    for k, d, s in (("f32", "float32", (3, 5)), ("i64", "int64", (2, 2, 2)), ("bf16", "bfloat16", (9,)), ("f64s", "float64", ()), ("u8", "uint8", (4, 3)),
                    ("f16", "float16", (3, 3)), ("bool", "bool", (5,)), ("c64", "complex64", (3,))):
        put(f"binary/{k}.lod", f"lod:{d}", lambda p: paddle.save(mk("b" + k, d, s), p, use_binary_format=True))
    # static graph: state dict, vars, params in the combined binary form
    try:
        paddle.enable_static()
        main, start = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, start):
            x = paddle.static.data("x", [None, 4], "float32")
            y = paddle.static.nn.fc(paddle.static.nn.fc(x, 5, activation="relu"), 3)
            loss = paddle.mean(y)
            paddle.optimizer.Adam(0.01).minimize(loss)
        exe = paddle.static.Executor(paddle.CPUPlace())
        start.random_seed = 5
        exe.run(start)
        exe.run(main, feed={"x": np.ones((2, 4), np.float32)}, fetch_list=[loss])
        put("static/prog.pdparams", "load", lambda p: paddle.save(main.state_dict("param"), p))
        put("static/prog.pdopt", "load", lambda p: paddle.save(main.state_dict("opt"), p))
        put("static/prog_p2.pdparams", "load", lambda p: paddle.save(main.state_dict("param"), p, protocol=2))
        sdict = main.state_dict("param")
        k0 = sorted(sdict)[0]
        put("static/one_var_pickle.pd", "load", lambda p: paddle.save(sdict[k0], p))
        put("static/one_var.lod", "lod:float32", lambda p: paddle.save(sdict[k0], p, use_binary_format=True))
        put("static/infer.pdmodel", "combined", lambda p: paddle.static.save_inference_model(p[:-8], [x], [y], exe, program=main))
        if os.path.exists(f"{ckpt}/static/infer.pdmodel"):          # forget the Python call stacks (paths of this machine)
            prog = paddle.static.deserialize_program(open(f"{ckpt}/static/infer.pdmodel", "rb").read())
            for op in prog.global_block().ops:
                if op.has_attr("op_callstack"):
                    op._remove_attr("op_callstack")
            open(f"{ckpt}/static/infer.pdmodel", "wb").write(prog.desc.serialize_to_string())
    except Exception as e:
        print("static:", type(e).__name__, str(e)[-300:])
    finally:
        paddle.disable_static()
    return made


def truth(paddle, ckpt, made, rank_files):
    vers = []
    for rel, how in made + rank_files:
        p = f"{ckpt}/{rel}"
        tens, objs = [], []
        v = {"name": rel, "complete": True, "tensors": tens, "objects": objs}
        if how == "load":
            walk(paddle, paddle.load(p), [], tens, objs)
        elif how == "load_np":
            walk(paddle, paddle.load(p, return_numpy=True), [], tens, objs)
        elif how.startswith("lod:"):
            t = paddle.load(p)
            a = np.array(t)
            d = how[4:]
            if d == "bfloat16" and a.dtype != np.uint16:
                a = a.view("<u2")
            tens.append(entry("value", [], d, a))
        elif how == "pickle_attr":
            import pickle
            objs.append({"key": "attr", "path": [], "json": js(pickle.load(open(p, "rb"))), "type": "dict"})
        elif how == "combined":
            paddle.enable_static()
            exe = paddle.static.Executor(paddle.CPUPlace())
            prog, _, _ = paddle.static.load_inference_model(p[:-8], exe)
            files = sorted(f for f in os.listdir(os.path.dirname(p)) if f.startswith("infer"))
            v["files"] = ["static/" + f for f in files]
            v["name"] = "static/infer.pdiparams"
            sd = prog.state_dict("param") if hasattr(prog, "state_dict") else {}
            for k in sorted(sd):
                tens.append(entry(k, [k], "float32", np.array(sd[k])))
            paddle.disable_static()
        vers.append(v)
    return vers


SEQUENCES = {("lr",): "list", ("more", "tuple"): "tuple"}      # of write_all()'s nested object; what holds no tensor is one value
PART = re.compile(r"(.+?)(?:_(?:rank|dist)(\d+))?\.(pdparams|pdopt|pdiparams|pdmodel|pdattr|json)")


def spelled(v):
    """Keys as the suite has them, and sequences that are shown as one value."""
    out = {"tensors": [], "objects": []}
    parts = {}
    for t in v["tensors"]:
        out["tensors"].append(dict({k: w for k, w in t.items() if k != "numpy"}, key=".".join(t["path"]) or "value"))
        if tuple(t["path"][:-1]) in SEQUENCES:
            parts.setdefault(tuple(t["path"][:-1]), {})[int(t["path"][-1])] = {"$tensor": ".".join(t["path"])}
    for o in v["objects"]:
        parent = tuple(o["path"][:-1])
        if parent in SEQUENCES:
            parts.setdefault(parent, {})[int(o["path"][-1])] = o["json"]
        else:
            out["objects"].append(dict(o, key=".".join(o["path"]) or "value"))
    for path, items in parts.items():
        out["objects"].append({"key": ".".join(path), "path": list(path), "json": [items[i] for i in sorted(items)], "type": SEQUENCES[path]})
    return out


def put_rank(t, rank):
    return dict(t, key=f"rank{rank}.{t['key']}", path=[f"rank{rank}"] + t["path"])


def union(files):
    """One version of several files: {rank or None, contents}. Whole tensors of different ranks; copies that all ranks made, once."""
    said = {}
    for _, v in files:
        for t in v["tensors"]:
            said.setdefault(t["key"], []).append(t)
    out = {"tensors": [], "objects": []}
    for rank, v in files:
        for t in v["tensors"]:
            first = said[t["key"]][0]
            if any(x != first for x in said[t["key"]]):
                out["tensors"].append(put_rank(t, rank))
            elif t is first:
                out["tensors"].append(t)
        for o in v["objects"]:
            if o not in out["objects"]:
                out["objects"].append(o)
    return out


def copies(files):
    """save_for_auto_inference of an uncut model: every rank has all of it."""
    for _, v in files[1:]:
        assert v["tensors"] == files[0][1]["tensors"]
    return files[0][1]


def regroup(m, ckpt):
    """The truth of single files -> that of versions: files of one stem, and of several ranks, go together."""
    groups = {}
    for v in m["versions"]:
        folder, file = os.path.split(v["name"])
        folder = os.path.basename(folder)
        part = PART.fullmatch(file)
        stem = part[1] if part else file
        if not file.endswith(".pdattr"):
            groups.setdefault((folder, stem), []).append((part[2] if part else None, spelled(v)))
    infer = groups[("static", "infer")][0][1]
    prog = groups[("static", "prog")][0][1]["tensors"]
    by_key = sorted(prog, key=lambda t: t["key"])
    assert infer["tensors"] in ([], by_key)         # the same variables at the same moment; 2.6.2 does not hand them out again
    infer["tensors"] = by_key
    versions = []
    for (folder, stem), files in groups.items():
        name = folder if stem == "model" else f"{folder}@{stem}"
        versions.append({"name": name, "complete": True, **(copies(files) if folder == "auto" else union(files)), "aliases": [], "shards": []})
    return dict(m, about="paddle.save with protocols 2 to 4, nested objects, bare tensors, numpy arrays, C++ binary (use_binary_format), static-graph dicts and "
                "save_inference_model; paddle.incubate.distributed.utils.io from 2 ranks: auto/ save_for_auto_inference, not_gathered/ disjoint whole tensors, "
                "gathered*/ save with gather_to. Tied emb/head are stored twice.", versions=versions)


def lay_out(m, made, dest):
    """ckpt/ with one level of directories, and its manifest."""
    fresh(dest)
    shutil.copytree(made, os.path.join(dest, "ckpt"), ignore=shutil.ignore_patterns("dist_save"))
    for d in os.listdir(os.path.join(made, "dist_save")):
        shutil.copytree(os.path.join(made, "dist_save", d), os.path.join(dest, "ckpt", d))
    write_manifest(os.path.join(dest, "manifest.json"), regroup(m, dest))


def main():
    import paddle
    import paddle_ranks
    name = NAMES[paddle.__version__]
    run = fresh(os.path.join(tempfile.gettempdir(), "run", name))
    ckpt = f"{run}/ckpt"
    os.makedirs(ckpt)
    me = os.path.abspath(sys.argv[0])
    made = write_all(paddle, ckpt)
    paddle_ranks.run(2, [me, "--rank", f"{ckpt}/dist_save"], f"{run}/dist_save.log")
    rf = []
    for r, _, fs in sorted(os.walk(f"{ckpt}/dist_save")):
        for f in sorted(fs):
            rf.append((os.path.relpath(os.path.join(r, f), ckpt), "pickle_attr" if f.endswith(".pdattr") else "load"))
    m = {"name": name, "format": "paddle-plain", "frameworks": {"paddlepaddle": paddle.__version__, "numpy": np.__version__}, "versions": truth(paddle, ckpt, made, rf)}
    lay_out(m, ckpt, os.path.join(OUT, name))
    if name == "paddle-plain":
        hf(paddle)


def hf(paddle):
    """merge_sharded_state_dict of ../paddle-dist unique_id 1, and the metadata Paddle generates when such a directory is loaded with safetensors=True"""
    from paddle.distributed.flex_checkpoint.dcp.load_state_dict import merge_sharded_state_dict
    import paddle.distributed as dist
    src = f"{OUT}/paddle-dist/ckpt"
    run = fresh(os.path.join(tempfile.gettempdir(), "run", "paddle-hf"))
    ckpt = f"{run}/ckpt/merged"
    os.makedirs(f"{run}/ckpt")
    import paddle_ranks
    one = fresh(os.path.join(tempfile.gettempdir(), "run", "paddle-hf-src"))
    for f in os.listdir(src):
        if f.endswith("_1.distcp") or f == "1.metadata":
            import shutil
            shutil.copy(f"{src}/{f}", one)
    paddle_ranks.run(2, [os.path.abspath(sys.argv[0]), "--merge", one, ckpt], f"{run}/merge.log")
    tens = []
    idx = json.load(open(f"{ckpt}/model.safetensors.index.json"))
    old = {t["key"]: t for v in json.load(open(f"{OUT}/paddle-dist/manifest.json"))["versions"] if v["unique_id"] == 1 for t in v["tensors"]}
    sd = {}
    for k in idx["weight_map"]:
        dt = {v[0]: w for w, v in ST.items()}[old[k]["dtype"]]
        sd[k] = poison(paddle, dt, old[k]["shape"])
    dist.load_state_dict(sd, ckpt, safetensors=True)         # writes flex-ckpt.auto_generated.metadata beside the files
    for k, t in sd.items():
        e = entry(k, [k], word(t), from_paddle(paddle, t, word(t)))
        if e["sha256"] != old[k]["sha256"]:
            e["about"] = "differs from paddle-dist unique_id 1"
            print("hf differs", k)
        tens.append(e)
    write_manifest(f"{run}/manifest.json", {"name": "paddle-hf", "format": "hf-safetensors", "frameworks": {"paddlepaddle": paddle.__version__}, "about":
                   "merge_sharded_state_dict (2 ranks) of paddle-dist unique_id 1, then loaded once with safetensors=True, which added "
                   "flex-ckpt.auto_generated.metadata (a Metadata pickle whose flat_mapping is None and whose file names are the .safetensors).",
                   "index": idx["metadata"], "versions": [{"name": "merged", "complete": True, "tensors": tens}]})
    install(run, os.path.join(OUT, "paddle-hf"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(sys.argv[2])
    elif sys.argv[1:2] == ["--merge"]:
        paddle, dist = env()
        dist.init_parallel_env()
        from paddle.distributed.flex_checkpoint.dcp.load_state_dict import merge_sharded_state_dict
        merge_sharded_state_dict(sys.argv[2], sys.argv[3], unique_id=1, skip_postfix_list=["deep.a.b.c.d"])      # it has no int64
    else:
        main()
