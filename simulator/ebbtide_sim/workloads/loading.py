"""Which generator or reader a name or a file is for."""

from ebbtide_sim.workload import Workload, WorkloadError


def load(name_or_path: str, seed: int, jobs: int | None, arrival: str) -> Workload:
    """See `ebbtide_sim.workload.load_workload`."""
    raise WorkloadError(f"{name_or_path}: neither a file nor one of the workloads")
