"""Holds every bound that Ebbtide puts on its input, with the reason for its value.

All of them hold by default. docs/reference/limits.md says which of them an administrator can change, and how.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

MAX_NAME_LENGTH: Final = 128
"""Bytes of the name of a job or a group: it fits into one line of a terminal, with room for other columns."""
MAX_USER_LENGTH: Final = 64
"""Characters of a user's name; Linux takes 32."""
MAX_ARGUMENT_BYTES: Final = 128 * KIB - 1
"""Bytes of one argument or environment entry; Linux does not execute a command with a longer one."""
MAX_COMMAND_BYTES: Final = 1 * MIB
"""Bytes of all arguments of a command together."""
MAX_ARGUMENTS: Final = 65_536
"""Arguments of one command. Linux keeps a pointer for each, and executes no command with many more; each costs the
master time."""
BYTES_PER_ARGUMENT: Final = 64
"""Bytes of memory that an argument takes besides its text."""
MAX_ENV_BYTES: Final = 256 * KIB
"""Bytes of a whole environment; with the command it stays far below the 2 MiB that Linux executes."""
MAX_SCRIPTS: Final = 16
"""Scripts of one job whose digests are kept, to tell whether they were edited."""
MAX_SCRIPT_BYTES: Final = 128 * KIB
"""Bytes of a script that is submitted as a file: its copy is part of the job."""
MAX_PATH_BYTES: Final = 4095
"""Bytes of a path; Linux takes no longer one."""
MAX_GPUS: Final = 4096
"""GPUs that one job may ask for: four times what the largest runs of a big laboratory take."""
MAX_CPUS: Final = 65_536
"""CPUs of a node, and that a job may ask for on one node: more than any machine has."""
MAX_MEM_BYTES: Final = 2**53
"""Bytes of memory; beyond this, whole numbers are not exact in JSON."""
MAX_GRACE_S: Final = 24 * 3600.0
"""Seconds of a grace period, a day: a job that needs longer to save would never give a GPU back."""
MAX_TIME_LIMIT_S: Final = 366 * 24 * 3600.0
"""Seconds of a time limit, a year."""
MAX_RETRIES: Final = 1000
"""Retries of one job; with the back-off of a minute they are most of a day of failures."""
MAX_OPERATION_ID_LENGTH: Final = 64
"""Characters of an operation id, twice a UUID; the master remembers all of them."""
MAX_UNFINISHED_JOBS: Final = 200_000
"""Unfinished jobs of all users: twice what is promised to work, at about 10 KiB each in the master."""
MAX_UNFINISHED_JOBS_PER_USER: Final = 100_000
"""Unfinished jobs of one user: half of all, so that no user keeps the others out."""
MAX_ARRAY_TASKS: Final = 10_000
"""Tasks of one array; they are accepted together, or not at all."""
MAX_ARRAY_BYTES: Final = 128 * MIB
"""Bytes of the commands and scripts of all tasks of one array, with `BYTES_PER_ARGUMENT`: the journal has them for
each task."""
MAX_TEXT_BYTES_PER_USER: Final = 1024 * MIB
"""Bytes of the commands, scripts and environments of all jobs of one user that the master knows; it has them in
memory."""
MAX_ARRAY_INDEX: Final = 999_999
"""The largest index of a task, six digits; the indices of an array need not be dense."""
MAX_PARAMS: Final = 16
"""Params of one task of an array."""
MAX_LOG_RULES: Final = 32
"""Log rules of one job; each costs its supervisor time."""
MAX_NOTICE_RULES: Final = 16
"""Notice rules of one job."""
MAX_DEPENDENCIES: Final = 100
"""Jobs and arrays that one job may depend on."""
CALLS_PER_S: Final = 200.0
"""Changes per second that one user may ask for in the long run: twice what scripts that submit one by one come to, and
a third of what a small master does, so that the other users always find room."""
CALLS_AT_ONCE: Final = 500.0
"""Changes that one user may ask for at once after a pause, so that a loop over a folder is not slowed down."""
JOBS_PER_S: Final = 1000.0
"""Jobs per second that one user may submit in arrays in the long run: twice what is promised to any user."""
JOBS_AT_ONCE: Final = 20_000.0
"""Jobs that one user may submit in arrays at once after a pause: two arrays of the largest size."""
READS_PER_S: Final = 500.0
"""Questions per second of one user in the long run; one second of them is a tenth of what a small master answers."""
READS_AT_ONCE: Final = 2000.0
"""Questions of one user at once after a pause: a script that looks at each of its jobs."""
WATCHED_PER_S: Final = 250.0
"""Changes of jobs per second that all streams of one user carry: a tenth of what a small master can send. A change that
is sent later is sent in its newest form."""
WATCHED_AT_ONCE: Final = 1000.0
"""Changes of jobs that the streams of one user carry at once after a pause: every job that runs on a large cluster."""
LISTED_COST: Final = 0.05
"""What a job in a listing costs of these changes: it is sent together with other jobs."""

LISTED_COMMAND_BYTES: Final = 1 * KIB
"""Bytes of a command in a listing, which may be of 100,000 jobs; a request for one job gets its whole command."""

MAX_BEGIN: Final = 1e11
"""The latest Unix time of ``--begin``; as good as never."""

MAX_IDS: Final = 10_000
"""Jobs that one request names, as many as the largest array has."""
MAX_CALLS_PER_USER: Final = 256
"""Calls of one user that wait for their answer at a time; a client has one, a script with a hundred threads a
hundred."""
CALLS_AT_A_TIME: Final = 16
"""Calls of one user that the master works on at a time; the others wait. Their answers are ready together, and delay
the next call of every user."""
MAX_CALLS: Final = 4096
"""Calls of all users that wait for their answer at a time; each is a task of some 10 KiB in the master."""
EVENTS_AT_ONCE: Final = 500
"""Lines of the journal that are read for a stream at a time."""
LOG_WINDOW_BYTES: Final = 256 * KIB
"""Bytes of a log that the master asks a node for at a time."""
MAX_UPLOADS: Final = 16
"""Working directories that are uploaded at a time: each keeps a disk and a core busy."""
MAX_UPLOADS_PER_USER: Final = 2
"""Working directories that one user uploads at a time."""
UPLOAD_IDLE_S: Final = 60.0
"""Seconds after which an upload that sends nothing is cut off; a slow connection sends something."""
SNAPSHOT_BYTES_PER_USER: Final = 20 * 1024 * MIB
"""Bytes of one user's working directories on the master's disk, as they are stored: some hundred large ones."""
MAX_RELAYED: Final = 16
"""Questions about checkpoints to one node that are not answered yet; each answer may be 1 MiB."""
MAX_STATUS_WORDS: Final = 1000
"""Characters of a refusal: it travels as a header, and gRPC drops the whole answer if headers are too large."""
SLOW_READER_S: Final = 60.0
"""Seconds after which a client that reads nothing of a stream, though there is more, is cut off: the master keeps what
is not read."""
MAX_STREAMS_PER_USER: Final = 256
"""Streams of one user that are open at a time; `ebb submit --wait`, `ebb logs -f` and `ebb top` have one each."""
MAX_STREAMS: Final = 4096
"""Streams of all users that are open at a time; each costs the master some 20 KiB."""
MAX_CONNECTIONS: Final = 8192
"""Connections of clients and agents; each is an open file."""
MAX_AGENTS: Final = 7168
"""Agents that are connected at a time, each by a connection of its own; the rest of the connections is for clients."""
CONNECTION_IDLE_S: Final = 300.0
"""Seconds after which a connection without calls is closed; a client connects again when it has something to ask."""
HANDSHAKE_S: Final = 10.0
"""Seconds that a new connection has to identify itself."""
MAX_METADATA_BYTES: Final = 16 * KIB
"""Bytes of the headers of one call; a token is 60."""
MAX_MESSAGE_BYTES: Final = 4 * MIB
"""Bytes of one request: an array of the largest size with its params, or a script, a command and an environment, fit
in."""
OPEN_FILES: Final = 65_536
"""Open files that the master asks the system to allow it: connections, and the files of its store."""

KEPT_LOG_LINES: Final = 200_000
"""Lines, the last ones, that the master keeps of a log whose node goes."""
KEPT_LOG_BYTES: Final = 32 * MIB
"""Bytes of these lines at most; nodes look for them in the last 16 MiB."""
KEPT_LOGS_BYTES: Final = 4096 * MIB
"""Bytes of all logs that the master keeps."""

LOG_BYTES: Final = 1024 * MIB
"""Bytes that the log of one attempt takes on the disk of each of its nodes: its beginning and its end are kept."""
MIN_LOG_BYTES: Final = 1 * MIB
"""The smallest limit of a log in bytes: less would not hold a failure's traceback besides the progress before it."""
MAX_LOG_BYTES: Final = 2**50
"""The largest limit of a log in bytes; as good as no limit."""

MIN_PRIORITY: Final = 1
MAX_PRIORITY: Final = 99
"""Priorities are 1 to 99 as in Determined, whose priority scheduler this follows; lower is more urgent."""
DEFAULT_PRIORITY: Final = 42
URGENT_PRIORITY: Final = 10
"""The most urgent priority that a user may ask for; the more urgent ones are for operators."""
MIN_WEIGHT: Final = 0.001
MAX_WEIGHT: Final = 1000.0
"""A million times the least weight: sums of the shares stay exact enough."""
HEAVY_WEIGHT: Final = 10.0
"""The greatest weight that a user may ask for: ten times the share of a job that asks for no weight."""
RESERVED_GPU_HOURS: Final = 1000.0
"""GPU-hours that one user may have reserved at a time: a node of 8 GPUs for five days."""
RESERVED_AHEAD_S: Final = 30 * 24 * 3600.0
"""Seconds from now within which a user's reservation must end."""
MAX_NODES: Final = 4096
"""Nodes that one job may be spread over."""
MAX_WORK_S: Final = 1e12
"""Seconds of work on one GPU that a submitter may declare; 30,000 years."""
DEFAULT_GRACE_S: Final = 180.0
"""Seconds of the default grace period: most checkpoints of one node's memory are written in that time."""

MIN_IDLE_S: Final = 1.0
"""Seconds. A shorter idle time could not be distinguished from a pause between two keystrokes."""
CHANNEL_FRAME_BYTES: Final = 64 * KIB
"""Bytes of one frame of a channel: a user's keystroke waits for one frame at most."""
MAX_RUN_BYTES: Final = 64 * KIB
"""Bytes of a command that is started inside a job, its environment included: it travels in one frame."""
CHANNEL_WINDOW_BYTES: Final = 256 * KIB
"""Bytes of a channel that are on their way in one direction, sent and not acknowledged."""
MAX_CHANNELS_PER_JOB: Final = 32
"""Channels of one job at a time: some terminals, tunnels and copies."""
MAX_CHANNELS_PER_NODE: Final = 128
"""Channels of one node at a time; with the window this bounds what they have on their way to 32 MiB in each
direction."""
MAX_LOG_WAITS_PER_NODE: Final = 48
"""Followed logs of a node that get each line when it is printed; other followed logs are looked at now and then."""
MAX_TREE_PATHS: Final = 256
"""Files and directories that one copy names."""

MAX_AGENT_TEXT: Final = 4096
"""Characters of any text in an agent's message; the longest that makes sense is a path."""
MAX_AGENT_LIST: Final = 4096
"""Entries of any list in an agent's message, except that of its attempts; the longest that makes sense is of GPUs, or
of processes."""
MAX_FACT_LENGTH: Final = 256
"""Characters of a short fact that an agent reports: a host's name, a GPU's UUID, a version."""
MAX_NOTE_LENGTH: Final = 1024
"""Characters of a reason that an agent gives in words; it is shown in one line."""
MAX_GPUS_PER_NODE: Final = 1024
"""GPUs of a node: 128 GPUs cut into 8 slices each."""
MAX_NEEDS: Final = 64
"""Labels, taints, names or paths that one job may ask for, and labels or taints that a node may have."""
MAX_NODE_NAME_LENGTH: Final = 64
"""Characters of a node's name, as many as Linux allows a host."""
MAX_METRICS: Final = 32
"""Metrics that a job may report besides its loss."""
MAX_METRIC_NAME: Final = 64
"""Characters of the name of a metric."""
MAX_FOREIGN_PROCESSES: Final = 16
"""Foreign processes of one GPU that are listed one by one."""
MAX_FOREIGN_TEXT: Final = 64
"""Characters of a foreign process's user, and of its command."""

STORY_LENGTH: Final = 64
"""Events of one job that the core remembers for its error messages; the journal keeps all of them."""
GANG_GRACE_S: Final = 5.0
"""Seconds that the nodes of a gang have to end once one of them has failed; their processes often hang in a
collective."""
LOST_GPU_GRACE_S: Final = 30.0
"""Seconds that an attempt has at most to end once a GPU of it is gone; its processes often hang in the driver."""
GANG_FOLLOW_S: Final = 10.0
"""Seconds for which the other nodes of a gang may go on once the first has ended well."""
MAX_FRUITLESS_SUSPENSIONS: Final = 3
"""Suspensions in a row that saved nothing, after which a job is held."""
REQUEUE_BACKOFF_S: Final = 1.0
MAX_REQUEUE_BACKOFF_S: Final = 60.0
"""Seconds. A job that asks to be run again, or is retried, waits twice as long each time, from the first value to this
one."""
MAX_LAUNCHES_IN_VAIN: Final = 3
"""Failed launches of one job on one node in a row, after which the node is left out for the job."""
LEFT_OUT_S: Final = 300.0
"""Seconds for which a node is left out; by then an operator may have mended it."""
RECOVERY_GRACE_S: Final = 30.0
"""Seconds that a started master waits for the nodes that had attempts before it places anything."""

LEASE_MARGIN_S: Final = 30.0
"""Seconds that the master waits beyond the end of a lease, and by which a lease must be longer than the grace
period."""
LEASE_DRIFT: Final = 0.01
"""The share of its length by which a lease may seem longer to another clock."""
TOGETHER_S: Final = 120.0
"""Seconds. Nodes that fell silent within this time of each other fell silent together."""
DOUBTFUL_NODES: Final = 3
"""With fewer nodes than this, silence is believed however many are silent."""

MAX_UNKNOWN_ATTEMPTS: Final = 1000
"""Attempts of a job that a node may have and a restored journal lacks: more than any job has between two backups."""
MAX_ID_DIGITS: Final = 9
"""Digits of a job's number."""
