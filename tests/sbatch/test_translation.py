"""Scripts as people have them for Slurm: each becomes these options, or is refused with this reason."""

from pathlib import Path

import pytest
from ebbtide_cli.errors import Failure
from ebbtide_cli.submitting.slurm.translation import translate

SCRIPTS = Path(__file__).with_name("scripts")

TRANSLATED = {
    "single_gpu": "--gpus 1 --cpus 8 --mem 32768MiB --name resnet --time 7200s",
    "short_forms": "--gpus 2 --cpus 4 --name short --workdir /tmp --time 5400s --hold",
    "ddp_torchrun": "--gpus 4 --cpus 16 --mem 65536MiB --name ddp --time 86400s",
    "multi_node_torchrun": "--nodes 2 --gpus 4 --cpus 4 --name multinode",
    "multi_node_srun_tasks": "--nodes 2 --gpus 4 --cpus 4 --mem 16384MiB",
    "array_limit": "--gpus 1 --name sweep --time 1800s --output logs/%x_%A_%a.out --array 0-9%2",
    "array_shards": "--cpu-only --cpus 2 --mem 4000MiB --array 1-15:4,20",
    "requeue_usr1": "--gpus 1 --gpu-type a100 --name long --signal USR1 --grace 120s --signal-target leader",
    "signal_to_tasks": "--gpus 1 --time 216000s --signal SIGUSR1 --grace 90s --suspend none",
    "dependency_pipeline": "--gpus 1 --name evaluate --after afterok:12:13 --after afterany:14",
    "mps_half": "--gpus 1/2 --mem 8192MiB --name probe",
    "conda_module": "--gpus 2 --gpu-type v100 --cpus 10 --name finetune --pool gpu",
    "exclusive_nodes": "--nodes 4 --gpus 32 --time 259200s"
    " --exclude node03 --exclude node04 --exclude node05 --exclude node17",
    "mail": "--gpus 1 --name paper --output paper-%j.out --begin +3600s --notify started,ended=mailto:ada@example.org",
    "constraint": "--gpus 1 --gpu-type a100 --gpu-type h100 --on gpu-1 --on gpu-2",
    "cpu_preprocess": "--cpu-only --cpus 8 --mem 16384MiB --name preprocess",
    "steps_in_background": "--gpus 2 --cpus 2 --name many",
}

REFUSED = {
    "singleton": "singleton.sh:3: #SBATCH --dependency: jobs of one name may run together here",
    "shard": "shard.sh:2: #SBATCH --gres: how much of a GPU a shard is, is not known here: write #EBB --gpus 1/4",
    "heterogeneous": "heterogeneous.sh:3: heterogeneous jobs are not known here",
    "licence": "licence.sh:2: #SBATCH --licenses: licences are not counted here",
    "typo": "typo.sh:3: #SBATCH --time: 'tomorrow' is not a time",
}

NOTES = {
    "conda_module": ["conda_module.sh:3: #SBATCH --partition: a job is in one pool: gpu"],
    "exclusive_nodes": [
        "exclusive_nodes.sh:3: #SBATCH --exclusive: not used: the job's GPUs are its own, "
        "others may use the rest of the node",
        "exclusive_nodes.sh:7: #SBATCH --account: not used: jobs are accounted to their user",
        "exclusive_nodes.sh:8: #SBATCH --qos: not used: what is urgent is said with --te and --priority",
        "exclusive_nodes.sh:5: #SBATCH --mem: all memory of a node cannot be asked for: none is",
    ],
    "mail": ["mail.sh:7: #SBATCH --error: not used: stderr goes where stdout goes"],
}


def translated(name: str) -> tuple[str, list[str]]:
    """The options of one script, without the environment, and the notes on them."""
    path = SCRIPTS / f"{name}.sh"
    result = translate(path.name, path.read_text())
    words = [word for directive in result.directives for word in without_environment(directive.words)]
    return " ".join(words), result.notes


def without_environment(words: tuple[str, ...]) -> list[str]:
    named = {index for index, word in enumerate(words) if word == "--env"}
    return [word for index, word in enumerate(words) if word != "--env-all" and not {index, index - 1} & named]


def test_every_script_has_its_expectation():
    assert {path.stem for path in SCRIPTS.iterdir()} == set(TRANSLATED) | set(REFUSED)
    assert len(TRANSLATED) + len(REFUSED) >= 20


@pytest.mark.parametrize("name", TRANSLATED)
def test_a_script_becomes_options(name):
    assert translated(name)[0] == TRANSLATED[name]


@pytest.mark.parametrize("name", NOTES)
def test_what_is_not_used_is_said(name):
    assert translated(name)[1] == NOTES[name]


@pytest.mark.parametrize("name", REFUSED)
def test_a_script_that_asks_for_what_is_not_here_is_refused_with_the_reason(name):
    with pytest.raises(Failure) as refusal:
        translated(name)
    assert refusal.value.message.startswith(REFUSED[name])
    assert refusal.value.code == 2
