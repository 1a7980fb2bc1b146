-- A journal of schema 1 with what was added after users: nodes that were confirmed dead, leases, doubts about the master,
-- and attempts that were set aside. It must keep loading, too.
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
(2,1002.0,'NodeRegistered','','a','{"node":"a","hostname":"a","boot_id":"boot-1","gpus":[{"gpu":"a0","index":0,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":null,"parent":null,"links":[],"mps":false,"compute_capability":""}],"cpus":32.0,"mem_bytes":274877906944,"checkpoint_root_id":"shared","gpu_backend":"fake","version":"0","address":"","known":[],"share_with_foreign":false,"pool":"default","labels":{},"taints":[]}'),
(3,1003.0,'NodeRegistered','','b','{"node":"b","hostname":"b","boot_id":"boot-1","gpus":[{"gpu":"b0","index":0,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":null,"parent":null,"links":[],"mps":false,"compute_capability":""}],"cpus":32.0,"mem_bytes":274877906944,"checkpoint_root_id":"shared","gpu_backend":"fake","version":"0","address":"","known":[],"share_with_foreign":false,"pool":"default","labels":{},"taints":[]}'),
(4,1004.0,'NodeRegistered','','c','{"node":"c","hostname":"c","boot_id":"boot-1","gpus":[{"gpu":"c0","index":0,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":null,"parent":null,"links":[],"mps":false,"compute_capability":""}],"cpus":32.0,"mem_bytes":274877906944,"checkpoint_root_id":"shared","gpu_backend":"fake","version":"0","address":"","known":[],"share_with_foreign":false,"pool":"default","labels":{},"taints":[]}'),
(5,1005.0,'JobSubmitted','1','','{"job":"1","spec":{"command":["x"],"workdir":"/","name":"","env":{},"gpus_min":720720,"gpus_max":720720,"gpu_mem_bytes":0,"cpus":0.0,"mem_bytes":0,"job_class":"be","priority":42,"grace_s":180.0,"time_limit_s":null,"suspend":"checkpoint","launch":"single","retries":0,"exit_zero":"suspended","signal":"SIGTERM","signal_target":"auto","weight":1.0,"group":"","max_nodes":1,"nodes":1,"work_s":null,"time_auto":false,"resume_args":[],"warm":true,"spread":false,"move_checkpoints":false,"idle_ok":false,"log_rules":[],"output":"","prefix_ranks":false,"snapshot":null,"notify":[],"script":"","python_env":"","slurm":false,"scripts":{},"pool":"","needs":{"select":[],"tolerate":[],"on":[],"exclude":[],"gpu_types":[],"compute_capability":"","gpu_total_mem_bytes":0,"mixed_gpus":false,"require_paths":[]},"after":[],"begin_at":0.0,"asha":null,"kind":"batch","idle_limit_s":null,"failover_after_s":600.0},"user":"ann","hold":false,"operation_id":"","task":null,"again_of":null}'),
(6,1005.0,'AttemptPlaced','1','','{"job":"1","attempt":1,"allocation":{"nodes":[{"node":"a","gpus":[{"gpu":"a0","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node a","sticky":false,"reserved_s":null,"waited":""}'),
(7,1006.0,'AttemptStarted','1','','{"job":"1","attempt":1,"pid":1001,"resumed_step":null,"swaps":0,"node":"","port":0,"sharing":null,"edited":[],"leased":true}'),
(8,1007.0,'JobSubmitted','2','','{"job":"2","spec":{"command":["x"],"workdir":"/","name":"","env":{},"gpus_min":720720,"gpus_max":720720,"gpu_mem_bytes":0,"cpus":0.0,"mem_bytes":0,"job_class":"be","priority":42,"grace_s":180.0,"time_limit_s":null,"suspend":"checkpoint","launch":"single","retries":0,"exit_zero":"suspended","signal":"SIGTERM","signal_target":"auto","weight":1.0,"group":"","max_nodes":1,"nodes":1,"work_s":null,"time_auto":false,"resume_args":[],"warm":true,"spread":false,"move_checkpoints":false,"idle_ok":false,"log_rules":[],"output":"","prefix_ranks":false,"snapshot":null,"notify":[],"script":"","python_env":"","slurm":false,"scripts":{},"pool":"","needs":{"select":[],"tolerate":[],"on":[],"exclude":[],"gpu_types":[],"compute_capability":"","gpu_total_mem_bytes":0,"mixed_gpus":false,"require_paths":[]},"after":[],"begin_at":0.0,"asha":null,"kind":"batch","idle_limit_s":null,"failover_after_s":null},"user":"ann","hold":false,"operation_id":"","task":null,"again_of":null}'),
(9,1007.0,'AttemptPlaced','2','','{"job":"2","attempt":1,"allocation":{"nodes":[{"node":"b","gpus":[{"gpu":"b0","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node b","sticky":false,"reserved_s":null,"waited":""}'),
(10,1008.0,'AttemptStarted','2','','{"job":"2","attempt":1,"pid":1002,"resumed_step":null,"swaps":0,"node":"","port":0,"sharing":null,"edited":[],"leased":false}'),
(11,1009.0,'NodeLost','','a','{"node":"a","silent_s":20.0,"acknowledged":1008.0}'),
(12,1010.0,'NodeLost','','b','{"node":"b","silent_s":20.0,"acknowledged":1009.0}'),
(13,1010.0,'SilenceDoubted','','','{"nodes":["a","b"],"of":3}'),
(14,1011.0,'SilenceBelieved','','','{"user":"ann"}'),
(15,1012.0,'FenceFailed','','b','{"node":"b","reason":"ended with 1: no outlet","again_s":30.0}'),
(16,1013.0,'NodeConfirmedDead','','b','{"node":"b","user":"","by_hook":true}'),
(17,1013.0,'AttemptExited','2','','{"job":"2","attempt":1,"exit":{"exit_code":0,"signal":0,"lost":true,"stop_requested":false,"delivered":false,"caught":false,"acknowledged":false,"asked":false,"killed":false,"checkpointed":"unknown","checkpoint_s":0.0,"ended_at":0.0,"swap_failure":"","mps_failure":"","gpu_mem_peak_bytes":null,"out_of_memory":false,"lost_gpu":"","lost_because":"node b was confirmed dead by the fence hook","fenced":false},"progress":null,"freed":true,"node":""}'),
(18,1013.0,'AttemptPlaced','2','','{"job":"2","attempt":2,"allocation":{"nodes":[{"node":"c","gpus":[{"gpu":"c0","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node c","sticky":false,"reserved_s":null,"waited":""}'),
(19,1654.0,'AttemptExited','1','','{"job":"1","attempt":1,"exit":{"exit_code":0,"signal":0,"lost":true,"stop_requested":false,"delivered":false,"caught":false,"acknowledged":false,"asked":false,"killed":false,"checkpointed":"unknown","checkpoint_s":0.0,"ended_at":0.0,"swap_failure":"","mps_failure":"","gpu_mem_peak_bytes":null,"out_of_memory":false,"lost_gpu":"","lost_because":"its lease ended: node a was silent for 646 s","fenced":false},"progress":null,"freed":true,"node":""}'),
(20,1655.0,'NodeRegistered','','b','{"node":"b","hostname":"b","boot_id":"boot-1","gpus":[{"gpu":"b0","index":0,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":null,"parent":null,"links":[],"mps":false,"compute_capability":""}],"cpus":32.0,"mem_bytes":274877906944,"checkpoint_root_id":"shared","gpu_backend":"fake","version":"0","address":"","known":[{"job":"2","attempt":1},{"job":"77","attempt":2}],"share_with_foreign":false,"pool":"default","labels":{},"taints":[]}'),
(21,1655.0,'AttemptPlaced','1','','{"job":"1","attempt":2,"allocation":{"nodes":[{"node":"b","gpus":[{"gpu":"b0","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node b","sticky":false,"reserved_s":null,"waited":"waiting for 1 GPU"}'),
(22,1656.0,'StrayFound','2','b','{"node":"b","job":"2","attempt":1,"kind":"over","gpus":["b0"],"over":false,"orphan":false}'),
(23,1657.0,'StrayFound','77','b','{"node":"b","job":"77","attempt":2,"kind":"unknown","gpus":[],"over":false,"orphan":true}'),
(24,1658.0,'StrayEndRequested','77','b','{"node":"b","job":"77","attempt":2,"grace_s":9.0,"user":"ann"}'),
(25,1659.0,'StrayGone','2','b','{"node":"b","job":"2","attempt":1,"asked":true,"dirty_gpus":["b0"],"dirty_reasons":["it is full"]}'),
(26,1660.0,'AttemptOrphaned','2','c','{"node":"c","job":"2","attempt":2}'),
(27,1661.0,'JournalRestored','','','{"taken":1000.0,"skipped":7}');
PRAGMA user_version = 1;
COMMIT;
