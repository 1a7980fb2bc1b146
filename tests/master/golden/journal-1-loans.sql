-- A journal of schema 1 with nodes that end, and what was said of their ends. It must keep loading, too.
BEGIN;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE events (
    sequence INTEGER PRIMARY KEY,
    time REAL NOT NULL,
    kind TEXT NOT NULL,
    job TEXT NOT NULL,
    node TEXT NOT NULL,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX events_by_job ON events (job, sequence) WHERE job <> '';
INSERT INTO meta VALUES ('cluster_id','0123456789abcdef'),('epoch','1');
INSERT INTO events VALUES
(1,1001.0,'MasterStarted','','','{"epoch":1}'),
(2,1002.0,'NodeRegistered','','a','{"node":"a","hostname":"a","boot_id":"boot-1","gpus":[{"gpu":"a0","index":0,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":null,"parent":null,"links":[],"mps":false,"compute_capability":""}],"cpus":32.0,"mem_bytes":274877906944,"checkpoint_root_id":"shared","gpu_backend":"fake","version":"0","address":"","known":[],"share_with_foreign":false,"pool":"default","labels":{},"taints":[],"loan":{"until":30000.0,"owner":"ann"}}'),
(3,1003.0,'NodeRegistered','','b','{"node":"b","hostname":"b","boot_id":"boot-1","gpus":[{"gpu":"b0","index":0,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":null,"parent":null,"links":[],"mps":false,"compute_capability":""}],"cpus":32.0,"mem_bytes":274877906944,"checkpoint_root_id":"shared","gpu_backend":"fake","version":"0","address":"","known":[],"share_with_foreign":false,"pool":"default","labels":{},"taints":[],"loan":null}'),
(4,1004.0,'JobSubmitted','1','','{"job":"1","spec":{"gpus_min":720720,"gpus_max":720720,"gpu_mem_bytes":0,"cpus":0.0,"mem_bytes":0,"nodes":1,"max_nodes":1,"spread":false,"needs":{"select":[],"tolerate":[],"on":[],"exclude":[],"gpu_types":[],"compute_capability":"","gpu_total_mem_bytes":0,"mixed_gpus":false,"require_paths":[]},"pool":"","job_class":"be","priority":42,"weight":1.0,"group":"","work_s":null,"time_limit_s":null,"time_auto":false,"after":[],"begin_at":0.0,"asha":null,"suspend":"checkpoint","grace_s":100.0,"signal":"SIGTERM","signal_target":"auto","exit_zero":"suspended","retries":0,"move_checkpoints":false,"failover_after_s":null,"idle_ok":false,"idle_limit_s":null,"command":["x"],"workdir":"/","name":"","kind":"batch","env":{},"script":"","scripts":{},"resume_args":[],"launch":"single","python_env":"","snapshot":null,"slurm":false,"sdk":true,"warm":true,"stdin":false,"output":"","prefix_ranks":false,"log_rules":[],"notify":[]},"user":"ann","hold":false,"operation_id":"","task":null,"again_of":null,"request":""}'),
(5,1004.0,'AttemptPlaced','1','','{"job":"1","attempt":1,"allocation":{"nodes":[{"node":"a","gpus":[{"gpu":"a0","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node a","sticky":false,"reserved_s":null,"waited":""}'),
(6,1005.0,'AttemptStarted','1','','{"job":"1","attempt":1,"pid":1001,"resumed_step":null,"swaps":0,"node":"","port":0,"sharing":null,"edited":[],"leased":false}'),
(7,1006.0,'LoanAnnounced','','a','{"node":"a","loan":{"until":20000.0,"owner":"ann"}}'),
(8,1007.0,'LoanChanged','','a','{"node":"a","ends_in_s":60.0,"user":"bob"}'),
(9,1007.0,'StopRequested','1','','{"job":"1","attempt":1,"cause":"node drained","grace_s":50,"reason":"node a ends","for_job":null}'),
(10,1008.0,'AttemptExited','1','','{"job":"1","attempt":1,"exit":{"exit_code":85,"signal":0,"lost":false,"stop_requested":true,"delivered":true,"caught":true,"acknowledged":true,"asked":false,"killed":false,"checkpointed":"unknown","checkpoint_s":0.0,"ended_at":0.0,"swap_failure":"","mps_failure":"","gpu_mem_peak_bytes":null,"out_of_memory":false,"lost_gpu":"","lost_because":"","fenced":false,"memory_failure":"","clues":[],"input_failure":""},"progress":null,"freed":false,"node":""}'),
(11,1008.0,'WorkUnsaved','1','','{"job":"1","attempt":1,"checkpointed":"unknown","lost":"","hint":"it called suspend() without a function that saves, and has published nothing since"}'),
(12,1009.0,'AttemptFreed','1','','{"job":"1","attempt":1,"dirty_gpus":[],"node":"","dirty_reasons":[]}'),
(13,1009.0,'AttemptPlaced','1','','{"job":"1","attempt":2,"allocation":{"nodes":[{"node":"b","gpus":[{"gpu":"b0","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node b","sticky":false,"reserved_s":null,"waited":""}'),
(14,1010.0,'LoanChanged','','b','{"node":"b","ends_in_s":500.0,"user":"bob"}'),
(15,1011.0,'LoanChanged','','b','{"node":"b","ends_in_s":null,"user":"bob"}');
PRAGMA user_version = 1;
COMMIT;
