#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What composer.utils.load_checkpoint() promises, clause by clause: each case gives it and dcpfs.composer the same arguments, and
compares the State that comes of it byte by byte, what was returned, the warnings, what was logged as ignored, and the class of the error.

Needs mosaicml; tests/run.sh --frameworks runs it.

usage: composer_semantics.py [CASE...]
"""
import fnmatch
import json
import logging
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import warnings

import composer_proof
from composer_proof import EXTENSIONS, LOADERS, Net, Store, Trainer, composer, dcpfs, dist, np, theirs, torch
from composer.algorithms import Factorize, GhostBatchNorm
from composer.core import Event
from composer.utils import reproducibility

CASES = {}  # name: (function, ranks, each on a node of its own?)


EITHER = "either"
wrongs = []


def check(good, what):
    if not good:
        wrongs.append(what)
        print(f"rank {dist.get_global_rank()}: {what}", file=sys.stderr, flush=True)


def case(*ranks, alone=False):
    def add(work):
        CASES[work.__name__] = work, ranks, alone
        return work
    return add


class Wider(Net):
    """One weight more."""

    def __init__(self):
        super().__init__()
        self.more = torch.nn.Linear(2, 2, bias=False)


class Narrower(Net):
    """One weight less."""

    def __init__(self):
        super().__init__()
        self.mid = torch.nn.Linear(6, 7, bias=False)


class Other(Net):
    """One weight of another shape."""

    def __init__(self):
        super().__init__()
        self.emb = torch.nn.Embedding(12, 6)


def trained(folder, is_sharded=False, **how):
    """Names of the saves of a run that has ended: of its first and its last batches."""
    _, t = composer_proof.trainer(folder, is_sharded, 3, **{"save_interval": "3ba", "max_duration": "6ba", **how})
    t.fit()
    dist.barrier()
    t.close()
    return sorted(f"{folder}/{name}" for name in os.listdir(folder) if name.startswith("ep"))


def flat(value, at=""):
    """{path: what is there} of nested data."""
    if isinstance(value, dict) and value:
        return {k: v for key, one in value.items() for k, v in flat(one, f"{at}/{key!r}").items()}
    if isinstance(value, (list, tuple)) and value:
        return {k: v for i, one in enumerate(value) for k, v in flat(one, f"{at}/{type(value).__name__}{i}").items()}
    if hasattr(value, "local_shards"):
        value = [s.tensor for s in value.local_shards()]
        return flat(value, at) if value else {}
    value = getattr(value, "_local_tensor", value)
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous().numpy()
    return {at: (str(value.dtype), value.shape, value.tobytes()) if isinstance(value, np.ndarray) else
            re.sub(" at 0x[0-9a-f]+", "", f"{type(value).__name__} {value!r}")}


class Ignored(logging.Handler):
    """Paths that Composer says it ignores."""

    def __init__(self):
        super().__init__(logging.INFO)
        self.paths = []

    def emit(self, record):
        said = record.getMessage().partition("checkpoint state_dict: ")[2]
        self.paths += [sorted(said.split(", "))] if said else []


def outcome(by, path, is_sharded, how, fresh):
    """All that a load does to a new State."""
    losses, t = composer_proof.trainer(None, is_sharded, 9, **fresh)
    log, handler = logging.getLogger("composer.utils.checkpoint"), Ignored()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    theirs.load_checkpoint, torch.load = LOADERS[by]
    given = {k: (v() if k in ("ignore_keys", "algorithm_passes") and callable(v) else v) for k, v in how.items()}  # a new one for each loader
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            rng = theirs.load_checkpoint(path=path, state=t.state, logger=t.logger, **given)
            if rng:
                reproducibility.load_rng_state(rng)
        failure = None
    except Exception as e:
        rng, failure = None, e
    finally:
        log.removeHandler(handler)
        torch.load = LOADERS["save"][1]
    said = sorted({str(w.message) for w in caught if any(word in str(w.message) for word in ("ignore", "restored", "RNG", "required_on_load"))})
    drawn = [torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()] if rng else None
    state = {} if failure else flat(t.state.state_dict()) | {"algorithms": [type(a).__name__ for a in t.state.algorithms], "held": losses.held}
    dist.barrier()
    t.close()
    return failure, {"state": state, "rng": flat(rng), "drawn": drawn, "said": said, "ignored": handler.paths, "notes": given.get("notes")}


def alike(what, path, is_sharded=False, fails=None, fresh={}, **how):
    """Load by both: alike, and they fail as the class @fails says (None: they do not; EITHER: Composer decides). What dcpfs made of it."""
    (wrong, want), (failure, got) = (outcome(by, path, is_sharded, how, dict(fresh)) for by in ("composer", "dcpfs"))
    check(fails == EITHER or (wrong is None if fails is None else isinstance(wrong, fails)), f"{what}: Composer: {wrong!r}")
    check(failure is None if wrong is None else isinstance(failure, type(wrong)), f"{what}: {failure!r} is not {wrong!r}")
    for part in want:
        a, b = ((d[part] if isinstance(d[part], dict) else {part: d[part]}) for d in (want, got))
        differ = sorted(k for k in a.keys() | b.keys() if a.get(k) != b.get(k))
        check(not differ, f"{what}: {part} differs: {differ[:9]}, as {differ and [str(d.get(differ[0]))[:200] for d in (a, b)]}")
    return got


# ---- where ----

@case(1, 2)
def templates_are_expanded(folder):
    """{run_name}, and of rank 0 {rank}, {local_rank}, {node_rank}; other names in braces are an error."""
    first, last = trained(folder)
    os.makedirs(f"{folder}/run/0-0-0", exist_ok=True)
    dist.barrier()
    if dist.get_global_rank() == 0:
        shutil.copy(last, f"{folder}/run/0-0-0/ba6-000.pt")
        shutil.copy(last, f"{folder}/{{rank}}.pt")
    dist.barrier()
    for name, fails in (("{run_name}/0-0-0/ba6-000.pt", None), ("run/{rank}-{local_rank}-{node_rank}/ba6-{rank}0{node_rank}.pt", None),
                        ("run/0-0-0/ba6-{rank:03}.pt", FileNotFoundError),
                        ("{{rank}}.pt", FileNotFoundError), ("{{{{rank}}}}.pt", None), ("{run_name}{run_name}", FileNotFoundError),
                        ("{world_size}.pt", KeyError), ("{local_world_size}.pt", KeyError), ("{epoch}.pt", KeyError), ("ba{batch}-rank{rank}.pt", KeyError),
                        ("{}.pt", IndexError), ("{rank", ValueError)):
        if dist.get_world_size() == 1 or not fails:  # where rank 0 fails in Composer, others wait for it
            alike(name, f"{folder}/{name}", fails=fails)


NAMES = ("ep{epoch}-ba{batch}-be{batch_in_epoch}-sa{sample}-se{sample_in_epoch}-to{token}-te{token_in_epoch}-{total_wct}-{epoch_wct}-{batch_wct}"
         "-{world_size}-{local_world_size}-{rank}-{local_rank}-{node_rank}-{run_name}.pt")


@case(1, 2)
def the_trainer_finds_its_save(folder):
    """All that a save's name may have, found again by the Trainer: the link that it left has {world_size} and the like in its name."""
    where = {"save_overwrite": True, "save_filename": NAMES, "save_latest_filename": "{run_name}-{world_size}-{local_world_size}-rank{rank}"}
    _, t = composer_proof.trainer(f"{folder}/{{run_name}}/{{world_size}}", False, 3, save_interval="3ba", max_duration="6ba", **where)
    t.fit()
    t.close()
    saves = [n for n in os.listdir(f"{folder}/run/{dist.get_world_size()}") if n.endswith(".pt")]
    assert len(saves) == 2 and not any("{" in n for n in saves), saves
    for by in "composer", "dcpfs":
        theirs.load_checkpoint, torch.load = LOADERS[by]
        _, t = composer_proof.trainer(f"{folder}/{{run_name}}/{{world_size}}", False, 9, autoresume=True, max_duration="9ba", **where)
        torch.load = LOADERS["save"][1]
        assert t.state.timestamp.batch == 6 and "ep" in os.path.realpath(t.state.load_path), by
        state = flat(t.state.get_model_state_dict())
        assert by == "composer" or state == before
        before = state
        t.close()


@case(1)
def symlinks_are_followed(folder):
    """Links of the file system; files that end with .symlink, and those beside a name that is not there; their text names the next."""
    first, last = trained(folder)
    os.symlink(last, f"{folder}/link.pt")
    for name, text in (("a.pt.symlink", last), ("b.pt.symlink", f"{folder}/a.pt.symlink"), ("c.pt.symlink", f"{folder}/link.pt"), ("d.pt.symlink", f"{folder}/b.pt"),
                       ("lines.pt.symlink", last + "\n"), ("none.pt.symlink", f"{folder}/none"), ("rank0.pt.symlink", last), ("{rank}.pt.symlink", last),
                       ("braces.pt.symlink", last.replace("rank0", "rank{rank}")), (os.path.basename(first) + ".symlink", f"{folder}/none"),
                       ("name.pt.symlink", os.path.basename(last))):
        with open(f"{folder}/{name}", "w") as f:
            f.write(text)
    for name, fails in (("link.pt", None), ("a.pt.symlink", None), ("a.pt", None), ("b.pt", None), ("c.pt.symlink", None), ("d.pt", None), ("lines.pt", None),
                        ("none.pt", FileNotFoundError), ("none", FileNotFoundError), ("rank{rank}.pt", None), ("rank{rank}.pt.symlink", None),
                        ("braces.pt", FileNotFoundError), (os.path.basename(first), None), ("name.pt", FileNotFoundError)):
        alike(name, f"{folder}/{name}", fails=fails)
    for name, fails in ("name.pt.symlink", None), ("name.pt", None), (os.path.basename(last), None), ("none", FileNotFoundError):
        alike(f"a store's {name}", name, fails=fails, object_store=Store(folder))


@case(2)
def sharded_directories_are_found(folder):
    """Directories of sharded state dicts: {run_name}, links; {rank} and .symlink are not followed, and files are refused."""
    where = trained(folder, True)[-1]
    if dist.get_global_rank() == 0:
        os.symlink(folder, f"{folder}/run")
        os.symlink(os.path.basename(where), f"{folder}/link")
        with open(f"{folder}/text.symlink", "w") as f:
            f.write(where)
    dist.barrier()
    base = os.path.basename(where)
    for name, fails in ((base, None), (f"{{run_name}}/{base}", None), ("link", None), ("{rank}", FileNotFoundError), ("text.symlink", ValueError), ("text", FileNotFoundError),
                        (f"{base}/.metadata", ValueError)):
        alike(name, f"{folder}/{name}", True, fails=fails)


# ---- what ----

@case(1)
def missing_weights_are_errors(folder):
    """By default, too: weights that one of the two lacks are an error; only of the model, or of sharded state dicts."""
    path = trained(folder)[-1]
    for net in Net, Wider, Narrower, Other:
        for only in True, False:
            for how in {}, {"strict_model_weights": True}, {"strict_model_weights": False}:
                strict = only and how.get("strict_model_weights", True)
                fails = RuntimeError if net is Other or strict and net is not Net else None
                if not only and net in (Wider, Narrower):
                    how = {**how, "ignore_keys": ["state/optimizers"]}
                alike(f"{net.__name__} {only} {how}", path, fails=fails, fresh={"net": net}, load_weights_only=only, **how)


@case(2)
def missing_sharded_weights_are_errors(folder):
    """The same of sharded state dicts, where what the checkpoint lacks is an error in any case."""
    path = trained(folder, True)[-1]
    for net, fails in (Net, None), (Wider, True), (Narrower, False), (Other, True):
        for only in True, False:
            for strict in True, False:
                sharded_alike(f"{net.__name__} {only} {strict}", path, net, load_weights_only=only, strict_model_weights=strict)


def sharded_alike(what, path, net, **how):
    """As alike(), but errors of torch.distributed.checkpoint are no Exceptions, and DcpfsErrors here."""
    made = []
    for by in "composer", "dcpfs":
        try:
            made.append(outcome(by, path, True, how, {"net": net}))
        except BaseException as e:
            assert type(e).__name__ == "CheckpointException", repr(e)
            made.append((e, None))
            torch.load = LOADERS["save"][1]
            dist.barrier()
    (wrong, want), (failure, got) = made
    assert (wrong is None) == (failure is None), (what, repr(wrong)[-300:], repr(failure))
    if wrong is None:
        assert want == got, (what, {k: v for k, v in want["state"].items() if got["state"].get(k) != v})
    return failure


@case(1, 2)
def only_the_model_is_loaded(folder):
    """The model, and nothing else; nothing is returned."""
    path = trained(folder)[-1]
    got = alike("weights", path, load_weights_only=True)
    assert not any(got["rng"][k] != "NoneType None" for k in got["rng"]) and "'batch': 0" not in got["state"], got["rng"]
    assert got["state"]["/'timestamp'/'Timestamp'/'batch'"] == "int 0"
    assert alike("all", path)["state"]["/'timestamp'/'Timestamp'/'batch'"] == "int 6"


GLOBS = [
    ["state/optimizers"], ["state/optimizers/*"], ["state/optimizers*"], ["state/model/*"], ["state/model"], ["state/model/module.mid.*", "state/optimizers/*/state/module.mid.*"],
    ["state/model/module.m?d.weight", "nothing/*", "state/model/module.[en]*.weight", "state/model/module.[!en]*.bias"], ["rng", "state/rank_zero_seed"], ["rng/0/torch"],
    ["STATE/*", "state.model", "/state", "state/"], ["*/exp_avg"], ["*"], ["state"], [""], ["state/callbacks/Losses/ints/3"], ["state/schedulers/*/_last_lr/0"],
    ["state/timestamp/*/batch"], ["state/algorithms/0", "state/algorithms/0"], [], ("rng",), ["state/model/module.mid.weight/*"], ["*batch*", "*wct"], ["state/metadata*", "state/integrations"]]


@case(1)
def ignored_globs_are_left_out(folder):
    """Globs over paths, fnmatch's: what each hits is gone, the hits are logged, one without any is warned of."""
    path = trained(folder)[-1]
    seen = 0
    for globs in GLOBS:
        for only in False, True:
            got = alike(f"{globs} {only}", path, fails=EITHER, ignore_keys=globs, load_weights_only=only, strict_model_weights=False)
            seen += len(got["ignored"])
    assert seen > 20


@case(1)
def a_function_may_change_the_dict(folder):
    """A function gets the dict, with tensors, and may do anything to it."""
    path = trained(folder)[-1]

    def change(d):
        d["state"]["model"]["module.mid.bias"] = d["state"]["model"]["module.mid.bias"] * 2
        del d["state"]["optimizers"]["AdamW"]["state"]["module.mid.bias"]["exp_avg"]

    def fail(d):
        raise LookupError("no")

    def moved(d):
        d["state"]["timestamp"]["Timestamp"]["batch"] += len(d["rng"]) + 1
        d["rng"] = []

    for i, (function, fails) in enumerate([(lambda d: d["state"]["model"].pop("module.mid.bias"), None), (lambda d: d.pop("rng"), None), (lambda d: d.clear(), None), (change, EITHER),
                            (lambda d: d["state"].pop("optimizers"), None), (lambda d: d["state"]["callbacks"].clear(), None), (moved, None), (fail, LookupError)]):
        alike(f"function {i}", path, fails=fails, ignore_keys=lambda: function)
        alike(f"function {i}, weights", path, fails=EITHER, ignore_keys=lambda: function, load_weights_only=True)


@case(1)
def partial_optimizers_are_restored(folder):
    """State of an optimizer without that of some parameters, or without some of its parts: what is given is restored, or all fails."""
    path = trained(folder)[-1]
    for parts in (["state/module.mid.bias"], ["state/module.mid.*"], ["state/*"], ["state"], ["param_groups"], ["param_groups/1"], ["state/*/exp_avg"], ["state/*/step"],
                  ["param_groups/0/lr"], ["param_groups/*/weight_decay"], ["param_groups/0/params/0"]):
        alike(str(parts), path, fails=EITHER, ignore_keys=[f"state/optimizers/AdamW/{p}" for p in parts])


@case(2)
def ignored_shards_are_left_out(folder):
    """The same globs over what is asked of sharded state dicts."""
    path = trained(folder, True)[-1]
    for keys in [["state/optimizers*"], ["state/optimizers/AdamW/state/*mid*"], ["state/model/*mid*"], ["rng"], ["nothing"], ["state/timestamp", "rng"], ["state/callbacks*", "state/schedulers"],
                 lambda: lambda d: d["state"].pop("optimizers"), lambda: lambda d: d.pop("state")]:
        sharded_alike(str(keys), path, Net, ignore_keys=keys)


def tensors(value, at=()):
    """Keys of the tensors in nested data, and the tensors."""
    if isinstance(value, torch.Tensor):
        yield ".".join(at), value
    for k, v in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ():
        yield from tensors(v, (*at, str(k)))


@case(1)
def the_program_ignores_the_same(folder):
    """dcpload --ignore-keys and --weights-only leave out the tensors that Composer would, and count the hits of each glob."""
    path, out = trained(folder)[-1], f"{folder}/out"
    draw = random.Random(7)
    some = sorted({k.replace(".", "/", 2) for k, _ in tensors(torch.load(path, weights_only=False)["state"], ("state",))})
    made = [[draw.choice(some)[:draw.randrange(6, 40)] + draw.choice(["*", "?*", "", "[a-m]*", "*.weight"]) for _ in range(2)] for _ in range(12)]
    for globs in [g for g in GLOBS if "" not in g] + made:
        state, hits = torch.load(path, weights_only=False), {}
        keys = {id(t): key for key, t in tensors(state)}  # lists close their gaps
        for glob in globs:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                theirs.glob_filter([glob])(torch.load(path, weights_only=False))
            hits[glob] = not caught
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs.glob_filter(globs)(state)
        left = {keys[id(t)] for _, t in tensors(state)}
        for words, want in (["--weights-only"], {k for k in left if k.startswith("state.model.")}), ([], left):
            told = subprocess.run([os.path.join(os.path.dirname(os.environ["DCPFS_LIBRARY"]), "../dcpload"), path, "--json", "--dump", out, "--force", *words,
                                   *(w for g in globs for w in ("--ignore-keys", g))], capture_output=True, text=True, env={**os.environ, "DCPFS_CACHE": folder,
                                                                                                                           "WORLD_SIZE": "1", "RANK": "0"})
            check(told.returncode == 0, f"{globs} {words}: {told.stderr}")
            with open(f"{out}/rank-00000-of-00001.safetensors", "rb") as f:
                got = json.loads(f.read(int.from_bytes(f.read(8), "little"))).keys() - {"__metadata__"}
            check(got == want, f"{globs} {words}: {sorted(got ^ want)[:9]}")
            if told.returncode == 0 and not words:
                counted = json.loads(told.stdout)["ignored"]
                check(set(counted) == set(globs), f"{globs}: {counted}")
                # what has no tensor below it is an object's, and not counted
                check(all(hits[g] for g in globs if counted.get(g)), f"{globs}: {counted}, Composer: {hits}")


# ---- algorithms ----

class Pass:
    """An algorithm pass that notes what it is given, and may reorder it."""

    def __init__(self, notes, reverse):
        self.notes, self.reverse = notes, reverse

    def __call__(self, algorithms, event):
        self.notes.append((event, [type(a).__name__ for a in algorithms]))
        return list(reversed(algorithms)) if self.reverse else algorithms


def passes(path, fails, reverse=None, **how):
    made = []

    def new():
        made.append([])
        return [Pass(made[-1], r) for r in reverse]

    got = alike(f"passes {reverse} {how}", path, fails=fails, strict_model_weights=False, **({} if reverse is None else {"algorithm_passes": new}), **how)
    if reverse:
        assert made[0] == made[1] and len(made[0]) == len(reverse) and made[0][0][0] == Event.INIT, made
    return got["state"].get("algorithms"), made


@case(1)
def needed_algorithms_are_added(folder):
    """Algorithms that the checkpoint needs are added, but for those that are excluded; passes see and order all of them."""
    path = trained(folder, surgery=[Factorize(min_features=4, latent_features=2)])[-1]
    two = trained(folder + "-two", surgery=[Factorize(min_features=4, latent_features=2), GhostBatchNorm(4)])[-1]
    own = ["LabelSmoothing", "EMA"]
    for only in False, True:
        how = {"load_weights_only": only, "ignore_keys": ["state/optimizers"]}
        assert passes(path, None, **how)[0] == [*own, "Factorize"]
        got, made = passes(path, None, [False], **how)
        assert got == [*own, "Factorize"] and made[1] == [(Event.INIT, [*own, "Factorize"])], made
        assert passes(two, None, [False], **how)[1][1][0][1][:2] == own
        passes(path, ValueError, [True], **how)  # before one of the user's
        passes(path, None, [True, True], **how)
        for excluded in ["Factorize"], ["Factorize", "Nothing"], ["factorize"], ["Nothing"], []:
            got, _ = passes(path, None, [False], exclude_algorithms=excluded, **how)
            assert got == own + ([] if "Factorize" in excluded else ["Factorize"]), (excluded, got)
        passes(two, None, [False], exclude_algorithms=["GhostBatchNorm"], **how)
    alike("without, strictly", path, fails=RuntimeError, load_weights_only=True, exclude_algorithms=["Factorize"])
    present = {"surgery": [Factorize(min_features=4, latent_features=2)]}
    alike("present", path, fresh=present, ignore_keys=["state/optimizers"])
    alike("present in another form", path, fresh={"surgery": [Factorize(min_features=4, latent_features=3)]}, load_weights_only=True, strict_model_weights=False,
          fails=RuntimeError)


# ---- ranks ----

@case(1, 2, 4)
def random_states_are_given_by_rank(folder):
    """States of random generators by global rank, also for more and fewer ranks than saved them."""
    mine = os.path.dirname(folder)
    path = f"{mine}/rng-saved"
    if dist.get_world_size() == 1:
        return
    if dist.get_world_size() == 2:
        saved = trained(path)[-1]
        if dist.get_global_rank() == 0:
            shutil.copy(saved, f"{path}/two.pt")
        dist.barrier()
    got = alike("rng", f"{path}/two.pt")
    lists = dist.all_gather_object(sorted({k.split("/")[1] for k in got["rng"]}))
    assert lists == [["list0", "list1"]] * dist.get_world_size(), lists
    drawn = dist.all_gather_object(got["drawn"])
    assert drawn[0] != drawn[1] and got["said"] == ([] if dist.get_world_size() == 2 else got["said"]) and bool(got["said"]) == (dist.get_world_size() > 2), got["said"]


@case(2)
def differing_batches_fail_all(folder):
    """Ranks that would go on from different batches all fail."""
    path = trained(folder)[-1]

    def later():
        def change(d):
            d["state"]["timestamp"]["Timestamp"]["batch"] += dist.get_global_rank()
        return change

    alike("the same", path)
    alike("different", path, fails=RuntimeError, ignore_keys=later)
    for by in "composer", "dcpfs":
        assert "Timestamp mismatch" in str(outcome(by, path, False, {"ignore_keys": later}, {})[0]), by
    alike("only one", path, fails=RuntimeError, ignore_keys=lambda: (lambda d: d["state"].pop("timestamp")) if dist.get_global_rank() else (lambda d: None))


@case(2, alone=True)
def nodes_read_files_of_their_own(folder):
    """Ranks on nodes of their own: each has rank 0's file of its own path, or of the store; files that differ fail."""
    saves = trained(folder)
    if dist.get_global_rank() == 0:
        os.makedirs(f"{folder}/copy")
        shutil.copy(saves[-1], f"{folder}/copy")
    dist.barrier()
    name, rank = os.path.basename(saves[-1]), dist.get_global_rank()
    alike("one file", saves[-1])
    alike("a store", name, object_store=Store(folder))
    alike("a copy", f"{folder}/copy/{name}" if rank else saves[-1])
    alike("another save", saves[-1 if rank else 0], fails=RuntimeError)


def main():
    if len(sys.argv) > 2 and os.path.isabs(sys.argv[2]):
        torch.cuda.current_device = lambda: torch.device("cpu")
        for name in sys.argv[1].split(","):
            print(f"  {name}: {CASES[name][0].__doc__.splitlines()[0]}", flush=True)
            CASES[name][0](f"{os.path.dirname(sys.argv[2])}/{name}{dist.get_world_size()}")
            dist.barrier()
        sys.exit("\n".join(wrongs) or 0)
    asked = [name for name in CASES if name in sys.argv[1:]] or list(CASES)
    with tempfile.TemporaryDirectory(prefix="dcpfs-composer-") as scratch:
        for n, alone in (1, False), (2, False), (2, True), (4, False):
            names = [name for name in asked if n in CASES[name][1] and CASES[name][2] == alone]
            if names:
                composer_proof.job(scratch, ",".join(names), n, __file__, alone)
    print("all equal")


if __name__ == "__main__":
    main()
