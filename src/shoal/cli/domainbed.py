"""DomainBed's words on the command line: data sets taken by its names, options answered by ours."""

import shlex
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from ..catalogue import DATASETS, own_dataset
from ..documents import parse_json

# What to write instead of an option of its scripts.
OPTIONS = {
    "--data_dir": "use --data DIR",
    "--output_dir": "use --out DIR",
    "--input_dir": "give the folder alone, without an option",
    "--trial_seed": "use --trial T",
    "--hparams_seed": "use --draw K",
    "--hparams": "use --set NAME=VALUE",
    "--checkpoint_freq": "use --record-every N",
    "--holdout_fraction": "use --holdout SHARE",
    "--save_model_every_checkpoint": "use --keep-best RULE",
    "--n_trials": "use --trials N",
    "--n_hparams": "use --draws N",
    "--n_hparams_from": "leave it out: runs that are done are not trained again",
    "--command_launcher": "use --workers N, --shard I/N or --engine ray",
    "--single_test_envs": "leave it out: --test-domains singles is the default",
    "--latex": "use --format latex",
    "--seed": "leave it out: all seeds follow from the data set, the trial and the test domains",
    "--task": "leave it out: no method here trains on the test domains",
    "--uda_holdout_fraction": "leave it out: no method here trains on the test domains",
    "--skip_model_save": "leave it out: a run always writes its model",
    "--skip_confirmation": "leave it out: no command asks",
    "--auto_lr": "leave it out: ERM++ is not among the methods",
}
# What the first word after its sweep does.
ACTIONS = {
    "launch": "leave it out: the command trains what is not done",
    "delete_incomplete": "leave it out: what was interrupted resumes",
}
# What does the work of its scripts.
SCRIPTS = {
    "collect_results": "shoal report DIR",
    "list_top_hparams": "shoal report DIR --format json",
    "download": "shoal data download NAME",
    "save_images": "shoal report DIR --format html",
}
# Its names of selection rules.
RULES = {"IID": "training-domain", "oracle": "test-domain"}
# Options that are followed by indices of test domains: DomainBed's, and ours by mistake.
THEIRS = ("--test_envs", "--test_env")
TEST_DOMAINS = (*THEIRS, "--test-domains")
# Its hyperparameters that are options here.
SETTINGS = {
    "class_balanced": "use --balanced",
    "data_augmentation": "use --no-augment for false",
    "freeze_bn": "frozen is the default; use --train-batch-norm for false",
    "resnet18": "use --network resnet18",
    "resnet50_augmix": "off is the default; use --weights FILE for AugMix weights",
    "vit": "use --network timm:NAME",
    "dinov2": "use --network timm:NAME",
    "vit_dropout": "use dropout",
    "nonlinear_classifier": "leave it out: every head is linear",
    "linear_steps": "leave it out: ERM++ is not among the methods",
    "linear_lr": "leave it out: ERM++ is not among the methods",
    "lars": "leave it out: the optimiser is Adam",
}


def dataset_name(text: str) -> str:
    """Return the name here of a data set that DomainBed names, unless a folder has the name."""
    return text if Path(text).is_dir() else own_dataset(text)


def name_here(option: str, value: str) -> str:
    """Return what a rule of DomainBed, or else a script, is called here; empty if it is none."""
    return (RULES if option == "rule" else SCRIPTS).get(value, "")


def refuse_setting(name: str) -> None:
    """Raise if a hyperparameter of DomainBed is an option here."""
    if name in SETTINGS:
        raise ValueError(f"{name} of DomainBed is no hyperparameter here: {SETTINGS[name]}")


def refuse_domainbed(*folders: Path) -> None:
    """Raise if there are runs of DomainBed in these folders, for a command that takes ours."""
    from ..results.domainbed import read_domainbed

    theirs = sum(len(read_domainbed(folder)) for folder in folders if folder.is_dir())
    if theirs:
        raise ValueError(
            f"{theirs:,} runs of DomainBed, whose models are pickles, which shoal never opens; "
            f"'shoal report {' '.join(map(str, folders))}' prints what each rule chooses"
        )


def answers(words: Sequence[str], known: Collection[str], action: bool) -> list[str]:
    """Return a line for each of DomainBed's options among the words of a command.

    Args:
        known: the options that the command has.
        action: whether the first word can be an action of DomainBed's sweep.
    """
    found = []
    if action and words and words[0] in ACTIONS:
        found.append(f"{words[0]}: {ACTIONS[words[0]]}")
    for place, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option in known:
            continue
        given = [value] if equals else _values(words[place + 1 :])
        if option.startswith("--") and option not in TEST_DOMAINS:
            option = f"--{option[2:].replace('-', '_')}"
        if option in OPTIONS:
            found.append(f"{option}: {_set_of(given) or OPTIONS[option]}")
        elif option in TEST_DOMAINS:
            if option not in THEIRS and not all(text.isdecimal() for text in given):
                continue  # the name of a domain, after an option of another command
            what = _test_domains(given, _dataset(words), "--test-domain" in known)
            found.append(f"{' '.join([option, *given])}: {what}")
    return found


def _set_of(given: Sequence[str]) -> str:
    """Return what sets the hyperparameters of a JSON object; empty for anything else."""
    try:
        found = parse_json(given[0], "--hparams") if given else None
    except ValueError:
        return ""
    if not isinstance(found, dict) or not found:
        return ""
    return f"use --set {shlex.join(f'{name}={value}' for name, value in found.items())}"


def _values(words: Sequence[str]) -> list[str]:
    """Return the words before the next option."""
    end = next((at for at, word in enumerate(words) if word.startswith("--")), len(words))
    return list(words[:end])


def _dataset(words: Sequence[str]) -> str:
    """Return the value of ``--dataset``; empty if there is none."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if option == "--dataset":
            return value if equals else following
    return ""


def _folders(dataset: str) -> tuple[str, ...]:
    """Return the domains of a folder of images, in the order in which DomainBed numbers them."""
    with suppress(OSError):
        return tuple(sorted(one.name for one in Path(dataset).iterdir() if one.is_dir()))
    return ()


def _test_domains(given: Sequence[str], dataset: str, named: bool) -> str:
    """Return what to write instead of these indices.

    Args:
        named: whether the command takes names of test domains.
    """
    if not named:
        return "leave it out: every domain is left out in turn; 'shoal train' leaves out one"
    facts = DATASETS.get(dataset_name(dataset))
    names = facts.domains if facts else _folders(dataset)
    if not given or not all(text.isdecimal() and int(text) < len(names) for text in given):
        which = ", ".join(names) or "the names of the folders"
        envs = f"the envs are 0 to {len(names) - 1}; " if names else ""
        return f"domains have names here: {envs}use --test-domain with some of: {which}"
    found = {text: names[int(text)] for text in given}
    told = ", ".join(f"env {index} of {dataset} is {name}" for index, name in found.items())
    return f"domains have names here: {told}; use --test-domain {shlex.join(found.values())}"
