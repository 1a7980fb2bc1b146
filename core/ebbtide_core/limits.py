"""Every bound that Ebbtide puts on what comes in, in one place."""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

MAX_NAME_LENGTH: Final = 128
MAX_ARGUMENT_BYTES: Final = 128 * KIB - 1
"""Of one argument or environment entry; Linux refuses to execute more."""
MAX_COMMAND_BYTES: Final = 1 * MIB
"""Of all arguments together."""
MAX_ENV_BYTES: Final = 256 * KIB
MAX_SCRIPTS: Final = 16
"""Whose digests a job has, to tell whether they were edited."""
MAX_SCRIPT_BYTES: Final = 128 * KIB
"""Of a script that is submitted as a file: its copy is part of the job."""
MAX_PATH_BYTES: Final = 4095
MAX_GPUS: Final = 4096
"""That one job may ask for."""
MAX_CPUS: Final = 65_536
MAX_MEM_BYTES: Final = 2**53
MAX_GRACE_S: Final = 24 * 3600.0
MAX_TIME_LIMIT_S: Final = 366 * 24 * 3600.0
MAX_RETRIES: Final = 1000
MAX_OPERATION_ID_LENGTH: Final = 64
MAX_UNFINISHED_JOBS: Final = 200_000
MAX_ARRAY_TASKS: Final = 10_000
"""Of one array; they are accepted together, or not at all."""
MAX_ARRAY_INDEX: Final = 999_999
MAX_PARAMS: Final = 16
"""Of one task of an array."""
MAX_DEPENDENCIES: Final = 100
"""Jobs and arrays that one job waits for."""
MAX_BEGIN: Final = 1e11
"""Unix seconds; as good as never."""

MIN_PRIORITY: Final = 1
MAX_PRIORITY: Final = 99
DEFAULT_PRIORITY: Final = 42
MIN_WEIGHT: Final = 0.001
MAX_WEIGHT: Final = 1000.0
MAX_NODES: Final = 4096
"""That one job may be spread over."""
MAX_WORK_S: Final = 1e12
DEFAULT_GRACE_S: Final = 180.0

MIN_IDLE_S: Final = 1.0
CHANNEL_FRAME_BYTES: Final = 64 * KIB
"""Of one frame of a channel."""
CHANNEL_WINDOW_BYTES: Final = 256 * KIB
"""Of a channel that are on their way in one direction, sent and not acknowledged."""
MAX_CHANNELS_PER_JOB: Final = 32
MAX_CHANNELS_PER_NODE: Final = 128
"""At once; with the window this bounds what a node's channels have on their way to 32 MiB in each direction."""
MAX_TREE_PATHS: Final = 256
"""Files and directories that one copy names."""

MAX_GPUS_PER_NODE: Final = 1024
MAX_NEEDS: Final = 64
"""Labels, taints, names or paths that one job may ask for, and labels or taints that a node may have."""
MAX_NODE_NAME_LENGTH: Final = 64
MAX_METRICS: Final = 32
"""That a job may report beside its loss."""
MAX_METRIC_NAME: Final = 64
"""Characters of the name of one."""
MAX_FOREIGN_PROCESSES: Final = 16
"""Of one GPU that are told apart."""
MAX_FOREIGN_TEXT: Final = 64
"""Characters of such a process's user, and of its command."""

STORY_LENGTH: Final = 64
"""Events of one job that the core remembers for its error messages; the journal keeps all of them."""
GANG_GRACE_S: Final = 5.0
"""What the nodes of a job have to end once one of them has failed; their processes often hang in a collective."""
LOST_GPU_GRACE_S: Final = 30.0
"""What an attempt has to end at most once a GPU of it is gone; its processes often hang in the driver."""
GANG_FOLLOW_S: Final = 10.0
"""How long the other nodes of a job may go on once its first has ended well."""
MAX_FRUITLESS_SUSPENSIONS: Final = 3
"""Suspensions in a row that saved nothing, after which a job is held."""
REQUEUE_BACKOFF_S: Final = 1.0
MAX_REQUEUE_BACKOFF_S: Final = 60.0
RECOVERY_GRACE_S: Final = 30.0
"""How long a started master waits for the nodes that had attempts before it places anything."""
