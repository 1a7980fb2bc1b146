"""Every bound that Ebbtide puts on what comes in, in one place, and why it is that.

All of them hold by default. docs/operations.md ("Limits") tells which an administrator can change, and how.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

MAX_NAME_LENGTH: Final = 128
"""Bytes of the name of a job or a group: what fits into one line of a terminal, with room for other columns."""
MAX_USER_LENGTH: Final = 64
"""Characters of a user's name; Linux takes 32."""
MAX_ARGUMENT_BYTES: Final = 128 * KIB - 1
"""Of one argument or environment entry; Linux refuses to execute more."""
MAX_COMMAND_BYTES: Final = 1 * MIB
"""Of all arguments together."""
MAX_ARGUMENTS: Final = 65_536
"""Of one command. Linux keeps a pointer for each, and executes none of many more; each costs the master time."""
BYTES_PER_ARGUMENT: Final = 64
"""Of memory that an argument takes beside its text."""
MAX_ENV_BYTES: Final = 256 * KIB
"""Of a whole environment; with the command it stays far below the 2 MiB that Linux executes."""
MAX_SCRIPTS: Final = 16
"""Whose digests a job has, to tell whether they were edited."""
MAX_SCRIPT_BYTES: Final = 128 * KIB
"""Of a script that is submitted as a file: its copy is part of the job."""
MAX_PATH_BYTES: Final = 4095
"""As long as Linux takes a path."""
MAX_GPUS: Final = 4096
"""That one job may ask for: four times what the largest runs of a big laboratory take."""
MAX_CPUS: Final = 65_536
"""Of a node, and that a job may ask for on one: more than any machine has."""
MAX_MEM_BYTES: Final = 2**53
"""Beyond this, whole numbers are not exact in JSON."""
MAX_GRACE_S: Final = 24 * 3600.0
"""A day: who needs longer to save would never give a GPU back."""
MAX_TIME_LIMIT_S: Final = 366 * 24 * 3600.0
"""A year."""
MAX_RETRIES: Final = 1000
"""With the back-off of a minute that is most of a day of failures."""
MAX_OPERATION_ID_LENGTH: Final = 64
"""Twice a UUID; all of them are remembered."""
MAX_UNFINISHED_JOBS: Final = 200_000
"""Of all users: twice what is promised to work, at about 10 KiB each in the master."""
MAX_UNFINISHED_JOBS_PER_USER: Final = 100_000
"""Half of all, so that no one user keeps the others out."""
MAX_ARRAY_TASKS: Final = 10_000
"""Of one array; they are accepted together, or not at all."""
MAX_ARRAY_BYTES: Final = 128 * MIB
"""Of the commands and scripts of all tasks of one array, with `BYTES_PER_ARGUMENT`: the journal has them for each."""
MAX_TEXT_BYTES_PER_USER: Final = 1024 * MIB
"""Of the commands and scripts of all jobs of one user that the master knows; it has them in memory."""
MAX_ARRAY_INDEX: Final = 999_999
"""Six digits; the indices of an array need not be dense."""
MAX_PARAMS: Final = 16
"""Of one task of an array."""
MAX_LOG_RULES: Final = 32
"""Patterns that one job's output is searched for; each costs its supervisor time."""
MAX_NOTICE_RULES: Final = 16
"""Whom one job tells of what happens to it."""
MAX_DEPENDENCIES: Final = 100
"""Jobs and arrays that one job waits for."""
CALLS_PER_S: Final = 200.0
"""Changes that one user may ask for in the long run: twice what scripts that submit one by one come to, and a third of
what a small master does, so that the others always find room."""
CALLS_AT_ONCE: Final = 500.0
"""After a pause; a loop over a folder is not slowed down."""
JOBS_PER_S: Final = 1000.0
"""Jobs that one user may submit in the long run, in arrays; twice what is promised to anybody."""
JOBS_AT_ONCE: Final = 20_000.0
"""Two arrays of the largest size."""
READS_PER_S: Final = 500.0
"""Questions of one user; a second of them is a tenth of what a small master answers."""
READS_AT_ONCE: Final = 2000.0
"""After a pause: a script that looks at each of its jobs."""
TOLD_PER_S: Final = 250.0
"""Changes of jobs that the streams of one user are told of, all together: a tenth of what a small master can tell.
Whoever is told later is told the newest."""
TOLD_AT_ONCE: Final = 1000.0
"""After a pause: every job that runs on a large cluster."""
LISTED_COST: Final = 0.05
"""Of a job in a listing, in such changes: it travels with others."""

LISTED_COMMAND_BYTES: Final = 1 * KIB
"""Of a command in a listing, which may be of 100,000 jobs; who asks for one job is shown all of it."""

MAX_BEGIN: Final = 1e11
"""Unix seconds; as good as never."""

MAX_IDS: Final = 10_000
"""Jobs that one request names, as many as the largest array has."""
MAX_CALLS_PER_USER: Final = 256
"""That wait for their answer at a time; a client has one, a script with a hundred threads has a hundred."""
CALLS_AT_A_TIME: Final = 16
"""Of them that are worked on; the others wait. Their answers are ready together, and delay everybody's next."""
MAX_CALLS: Final = 4096
"""That wait for their answer at a time, of all users; each is a task of some 10 KiB in the master."""
EVENTS_AT_ONCE: Final = 500
"""Lines of the journal that are read for a stream at a time."""
LOG_WINDOW_BYTES: Final = 256 * KIB
"""Of a log that a node is asked for at a time."""
MAX_UPLOADS: Final = 16
"""Working directories that are sent at a time: each keeps a disk and a core busy."""
MAX_UPLOADS_PER_USER: Final = 2
"""Of them."""
UPLOAD_IDLE_S: Final = 60.0
"""Whoever sends nothing of a working directory for so long is cut off; a slow line sends something."""
SNAPSHOT_BYTES_PER_USER: Final = 20 * 1024 * MIB
"""Working directories of one user on the master's disk, as they lie there: some hundred large ones."""
MAX_RELAYED: Final = 16
"""Questions about checkpoints of one node that are not answered yet; each answer may be 1 MiB."""
MAX_STATUS_WORDS: Final = 1000
"""Characters of a refusal: it travels as a header, and gRPC drops the whole answer if headers are too large."""
SLOW_READER_S: Final = 60.0
"""Whoever reads nothing of a stream for so long, though there is more, is cut off: what is not read is kept here."""
MAX_STREAMS_PER_USER: Final = 256
"""That are open at a time; `ebb submit --wait`, `ebb logs -f` and `ebb top` have one each."""
MAX_STREAMS: Final = 4096
"""Open at a time by all users; each costs the master some 20 KiB."""
MAX_CONNECTIONS: Final = 8192
"""Of clients and agents; each is an open file."""
CONNECTION_IDLE_S: Final = 300.0
"""After which a connection without calls is closed; a client connects again by itself when it has something to ask."""
HANDSHAKE_S: Final = 10.0
"""What a new connection has to say who it is."""
MAX_METADATA_BYTES: Final = 16 * KIB
"""Of the headers of one call; a token is 60."""
MAX_MESSAGE_BYTES: Final = 4 * MIB
"""Of one request: an array of the largest size with its params, or a script, a command and an environment, fit in."""
OPEN_FILES: Final = 65_536
"""That the master asks the system to allow it: connections, and the files of its store."""

LOG_BYTES: Final = 1024 * MIB
"""That the log of one attempt takes on the disk of each of its nodes at most: its beginning and its end are kept."""
MIN_LOG_BYTES: Final = 1 * MIB
"""Less would not hold the traceback of a failure beside the progress before it."""
MAX_LOG_BYTES: Final = 2**50
"""As good as no limit."""

MIN_PRIORITY: Final = 1
MAX_PRIORITY: Final = 99
"""1 to 99 as in Determined, whose priority scheduler this follows; lower is more urgent."""
DEFAULT_PRIORITY: Final = 42
URGENT_PRIORITY: Final = 10
"""The most urgent that a user may ask for; what is left is for operators."""
MIN_WEIGHT: Final = 0.001
MAX_WEIGHT: Final = 1000.0
HEAVY_WEIGHT: Final = 10.0
"""The greatest that a user may ask for: ten times the share of who asks for nothing."""
RESERVED_GPU_HOURS: Final = 1000.0
"""That one user may have reserved for themselves at a time: a node of 8 GPUs for five days."""
RESERVED_AHEAD_S: Final = 30 * 24 * 3600.0
"""How far from now a reservation of a user may end."""
"""A million between the least and the greatest share: sums of them stay exact enough."""
MAX_NODES: Final = 4096
"""That one job may be spread over."""
MAX_WORK_S: Final = 1e12
"""Of computing on one GPU; 30,000 years."""
DEFAULT_GRACE_S: Final = 180.0
"""Most checkpoints of one node's memory are written in that."""

MIN_IDLE_S: Final = 1.0
"""Less could not be told from a pause between two keystrokes."""
CHANNEL_FRAME_BYTES: Final = 64 * KIB
"""Of one frame of a channel: somebody's keystroke waits for one at most."""
MAX_RUN_BYTES: Final = 64 * KIB
"""Of a command that is started inside a job, its environment included: it travels in one frame."""
CHANNEL_WINDOW_BYTES: Final = 256 * KIB
"""Of a channel that are on their way in one direction, sent and not acknowledged."""
MAX_CHANNELS_PER_JOB: Final = 32
"""At once: some terminals, tunnels and copies."""
MAX_CHANNELS_PER_NODE: Final = 128
"""At once; with the window this bounds what a node's channels have on their way to 32 MiB in each direction."""
MAX_LOG_WAITS_PER_NODE: Final = 48
"""Logs of a node that are followed and get each line when it is printed; others are looked at now and then."""
MAX_TREE_PATHS: Final = 256
"""Files and directories that one copy names."""

MAX_AGENT_TEXT: Final = 4096
"""Characters of any text in what an agent says; the longest that makes sense is a path."""
MAX_AGENT_LIST: Final = 4096
"""Entries of any list in it, but for that of its attempts; the longest that makes sense is of GPUs, or of processes."""
MAX_FACT_LENGTH: Final = 256
"""Characters of a short fact that an agent tells: a host's name, a GPU's UUID, a version."""
MAX_NOTE_LENGTH: Final = 1024
"""Characters of a reason that an agent gives in words; it is shown in one line."""
MAX_GPUS_PER_NODE: Final = 1024
"""128 GPUs cut into 8 slices each."""
MAX_NEEDS: Final = 64
"""Labels, taints, names or paths that one job may ask for, and labels or taints that a node may have."""
MAX_NODE_NAME_LENGTH: Final = 64
"""Of a host, as Linux has it."""
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
"""What asks to be run again, or is retried, waits twice as long each time, from one of these to the other."""
MAX_LAUNCHES_IN_VAIN: Final = 3
"""Of one job on one node in a row, after which it does without that node."""
LEFT_OUT_S: Final = 300.0
"""So long; by then somebody may have mended it."""
RECOVERY_GRACE_S: Final = 30.0
"""How long a started master waits for the nodes that had attempts before it places anything."""

LEASE_MARGIN_S: Final = 30.0
"""What the master waits beyond the end of a lease, and what a lease has to be longer than the grace period at least."""
LEASE_DRIFT: Final = 0.01
"""By how much of its length a lease may seem longer to another clock."""
TOGETHER_S: Final = 120.0
"""Nodes that fell silent within so long of each other did so together."""
DOUBTFUL_NODES: Final = 3
"""Of fewer nodes than these, silence is believed however many are silent."""

MAX_UNKNOWN_ATTEMPTS: Final = 1000
"""Of a job, that a node may have and a restored journal not: more than any job has in the time between two backups."""
MAX_ID_DIGITS: Final = 9
"""Of a job's number."""
