-- A journal of schema 1 with a job and a node that were removed. It must keep loading, too.
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
(1,1001.0,'NodeRegistered','','a','{"node":"a","hostname":"a","boot_id":"boot-1","gpus":[{"gpu":"a0","index":0,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":null,"parent":null,"links":[],"mps":false,"compute_capability":""}],"cpus":32.0,"mem_bytes":274877906944,"checkpoint_root_id":"root-a","gpu_backend":"fake","version":"0","address":"","known":[],"share_with_foreign":false,"pool":"default","labels":{},"taints":[]}'),
(2,1002.0,'NodeRegistered','','b','{"node":"b","hostname":"b","boot_id":"boot-1","gpus":[{"gpu":"b0","index":0,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":null,"parent":null,"links":[],"mps":false,"compute_capability":""}],"cpus":32.0,"mem_bytes":274877906944,"checkpoint_root_id":"root-b","gpu_backend":"fake","version":"0","address":"","known":[],"share_with_foreign":false,"pool":"default","labels":{},"taints":[]}'),
(3,1003.0,'JobSubmitted','1','','{"job":"1","spec":{"command":["x"],"workdir":"/","name":"","env":{},"gpus_min":720720,"gpus_max":720720,"gpu_mem_bytes":0,"cpus":0.0,"mem_bytes":0,"job_class":"be","priority":42,"grace_s":180.0,"time_limit_s":null,"suspend":"checkpoint","launch":"single","retries":0,"exit_zero":"suspended","signal":"SIGTERM","signal_target":"auto","weight":1.0,"group":"","max_nodes":1,"nodes":1,"work_s":null,"time_auto":false,"resume_args":[],"warm":true,"sdk":true,"spread":false,"move_checkpoints":false,"idle_ok":false,"log_rules":[],"output":"","prefix_ranks":false,"snapshot":null,"notify":[],"script":"","python_env":"","slurm":false,"scripts":{},"pool":"","needs":{"select":[],"tolerate":[],"on":[],"exclude":[],"gpu_types":[],"compute_capability":"","gpu_total_mem_bytes":0,"mixed_gpus":false,"require_paths":[]},"after":[],"begin_at":0.0,"asha":null,"kind":"batch","idle_limit_s":null,"failover_after_s":null},"user":"ann","hold":false,"operation_id":"","task":null,"again_of":null,"request":""}'),
(4,1003.0,'AttemptPlaced','1','','{"job":"1","attempt":1,"allocation":{"nodes":[{"node":"a","gpus":[{"gpu":"a0","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node a","sticky":false,"reserved_s":null,"waited":""}'),
(5,1004.0,'AttemptStarted','1','','{"job":"1","attempt":1,"pid":1001,"resumed_step":null,"swaps":0,"node":"","port":0,"sharing":null,"edited":[],"leased":false}'),
(6,1005.0,'JobSubmitted','2','','{"job":"2","spec":{"command":["x"],"workdir":"/","name":"","env":{},"gpus_min":720720,"gpus_max":720720,"gpu_mem_bytes":0,"cpus":0.0,"mem_bytes":0,"job_class":"be","priority":42,"grace_s":180.0,"time_limit_s":null,"suspend":"checkpoint","launch":"single","retries":0,"exit_zero":"suspended","signal":"SIGTERM","signal_target":"auto","weight":1.0,"group":"","max_nodes":1,"nodes":1,"work_s":null,"time_auto":false,"resume_args":[],"warm":true,"sdk":true,"spread":false,"move_checkpoints":false,"idle_ok":false,"log_rules":[],"output":"","prefix_ranks":false,"snapshot":null,"notify":[],"script":"","python_env":"","slurm":false,"scripts":{},"pool":"","needs":{"select":[],"tolerate":[],"on":[],"exclude":[],"gpu_types":[],"compute_capability":"","gpu_total_mem_bytes":0,"mixed_gpus":false,"require_paths":[]},"after":[],"begin_at":0.0,"asha":null,"kind":"batch","idle_limit_s":null,"failover_after_s":null},"user":"ann","hold":false,"operation_id":"","task":null,"again_of":null,"request":""}'),
(7,1005.0,'AttemptPlaced','2','','{"job":"2","attempt":1,"allocation":{"nodes":[{"node":"b","gpus":[{"gpu":"b0","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node b","sticky":false,"reserved_s":null,"waited":""}'),
(8,1006.0,'AttemptStarted','2','','{"job":"2","attempt":1,"pid":1001,"resumed_step":null,"swaps":0,"node":"","port":0,"sharing":null,"edited":[],"leased":false}'),
(9,1007.0,'AttemptExited','1','','{"job":"1","attempt":1,"exit":{"exit_code":0,"signal":0,"lost":false,"stop_requested":false,"delivered":false,"caught":false,"acknowledged":false,"asked":false,"killed":false,"checkpointed":"unknown","checkpoint_s":0.0,"ended_at":0.0,"swap_failure":"","mps_failure":"","gpu_mem_peak_bytes":null,"out_of_memory":false,"lost_gpu":"","lost_because":"","fenced":false,"memory_failure":"","clues":[]},"progress":null,"freed":false,"node":""}'),
(10,1008.0,'AttemptFreed','1','','{"job":"1","attempt":1,"dirty_gpus":[],"node":"","dirty_reasons":[]}'),
(11,2010.0,'NodeLost','','a','{"node":"a","silent_s":60.0,"acknowledged":0.0}'),
(12,2011.0,'JobRemoved','1','','{"job":"1","user":"ann"}'),
(13,2012.0,'NodeRemoved','','a','{"node":"a","user":"ann"}');
PRAGMA user_version = 1;
COMMIT;
