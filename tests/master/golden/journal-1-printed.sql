-- A journal of schema 1 with a job that left a GPU and a node because of what it printed. It must keep loading, too.
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
(1,1001.0,'NodeRegistered','','a','{"node":"a","hostname":"a","boot_id":"boot-1","gpus":[{"gpu":"a0","index":0,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":null,"parent":null,"links":[],"mps":false},{"gpu":"a1","index":1,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":null,"parent":null,"links":[],"mps":false}],"cpus":32.0,"mem_bytes":274877906944,"checkpoint_root_id":"shared","gpu_backend":"fake","version":"0","address":"","known":[],"share_with_foreign":false}'),
(2,1002.0,'NodeRegistered','','b','{"node":"b","hostname":"b","boot_id":"boot-1","gpus":[{"gpu":"b0","index":0,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":null,"parent":null,"links":[],"mps":false},{"gpu":"b1","index":1,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":null,"parent":null,"links":[],"mps":false}],"cpus":32.0,"mem_bytes":274877906944,"checkpoint_root_id":"shared","gpu_backend":"fake","version":"0","address":"","known":[],"share_with_foreign":false}'),
(3,1003.0,'JobSubmitted','1','','{"job":"1","spec":{"command":["x"],"workdir":"/","name":"","env":{},"gpus_min":720720,"gpus_max":720720,"gpu_mem_bytes":0,"cpus":0.0,"mem_bytes":0,"job_class":"be","priority":42,"grace_s":180.0,"time_limit_s":null,"suspend":"checkpoint","launch":"single","retries":1,"exit_zero":"suspended","signal":"SIGTERM","signal_target":"auto","weight":1.0,"group":"","max_nodes":1,"nodes":1,"work_s":null,"time_auto":false,"resume_args":[],"warm":true,"spread":false,"move_checkpoints":false,"log_rules":[{"pattern":"NCCL","action":"exclude-node"}],"output":"%j.out","prefix_ranks":true,"snapshot":{"digest":"0000000000000000000000000000000000000000000000000000000000000000","bytes":10240},"notify":[{"moments":["failed","held"],"target":"team"}]},"user":"ann","hold":false,"operation_id":""}'),
(4,1003.0,'AttemptPlaced','1','','{"job":"1","attempt":1,"allocation":{"nodes":[{"node":"a","gpus":[{"gpu":"a0","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node a","sticky":false,"reserved_s":null}'),
(5,1004.0,'AttemptStarted','1','','{"job":"1","attempt":1,"pid":1001,"resumed_step":null,"swaps":0,"node":"","port":0,"sharing":null}'),
(6,1005.0,'LogMatched','1','a','{"job":"1","attempt":1,"node":"a","match":{"pattern":"p","action":"exclude-gpu","line":"uncorrectable ECC error","gpus":["a0"]}}'),
(7,1005.0,'GpusExcluded','1','a','{"job":"1","node":"a","gpus":["a0"],"reason":"its log says ''uncorrectable ECC error''"}'),
(8,1006.0,'AttemptExited','1','','{"job":"1","attempt":1,"exit":{"exit_code":1,"signal":0,"lost":false,"stop_requested":false,"delivered":false,"caught":false,"acknowledged":false,"asked":false,"killed":false,"checkpointed":"unknown","checkpoint_s":0.0,"ended_at":0.0,"swap_failure":"","mps_failure":"","gpu_mem_peak_bytes":null,"out_of_memory":false,"lost_gpu":""},"progress":null,"freed":false,"node":""}'),
(9,1007.0,'AttemptFreed','1','','{"job":"1","attempt":1,"dirty_gpus":[],"node":"","dirty_reasons":[]}'),
(10,1007.0,'AttemptPlaced','1','','{"job":"1","attempt":2,"allocation":{"nodes":[{"node":"b","gpus":[{"gpu":"b0","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node b","sticky":false,"reserved_s":null}'),
(11,1008.0,'AttemptStarted','1','','{"job":"1","attempt":2,"pid":1002,"resumed_step":null,"swaps":0,"node":"","port":0,"sharing":null}'),
(12,1009.0,'LogMatched','1','b','{"job":"1","attempt":2,"node":"b","match":{"pattern":"p","action":"exclude-node","line":"NCCL error","gpus":["b0"]}}'),
(13,1009.0,'NodeExcluded','1','b','{"job":"1","node":"b","reason":"its log says ''NCCL error''"}'),
(14,1010.0,'AttemptExited','1','','{"job":"1","attempt":2,"exit":{"exit_code":1,"signal":0,"lost":false,"stop_requested":false,"delivered":false,"caught":false,"acknowledged":false,"asked":false,"killed":false,"checkpointed":"unknown","checkpoint_s":0.0,"ended_at":0.0,"swap_failure":"","mps_failure":"","gpu_mem_peak_bytes":null,"out_of_memory":false,"lost_gpu":""},"progress":null,"freed":false,"node":""}'),
(15,1011.0,'AttemptFreed','1','','{"job":"1","attempt":2,"dirty_gpus":[],"node":"","dirty_reasons":[]}'),
(16,1011.0,'AttemptPlaced','1','','{"job":"1","attempt":3,"allocation":{"nodes":[{"node":"a","gpus":[{"gpu":"a1","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node a","sticky":false,"reserved_s":null}'),
(17,1012.0,'AttemptStarted','1','','{"job":"1","attempt":3,"pid":1003,"resumed_step":null,"swaps":0,"node":"","port":0,"sharing":null}'),
(18,1013.0,'LogMatched','1','a','{"job":"1","attempt":3,"node":"a","match":{"pattern":"p","action":"no-retry","line":"CUDA out of memory","gpus":["a1"]}}'),
(19,1014.0,'AttemptExited','1','','{"job":"1","attempt":3,"exit":{"exit_code":1,"signal":0,"lost":false,"stop_requested":false,"delivered":false,"caught":false,"acknowledged":false,"asked":false,"killed":false,"checkpointed":"unknown","checkpoint_s":0.0,"ended_at":0.0,"swap_failure":"","mps_failure":"","gpu_mem_peak_bytes":null,"out_of_memory":false,"lost_gpu":""},"progress":null,"freed":false,"node":""}'),
(20,1015.0,'AttemptFreed','1','','{"job":"1","attempt":3,"dirty_gpus":[],"node":"","dirty_reasons":[]}');
PRAGMA user_version = 1;
COMMIT;
