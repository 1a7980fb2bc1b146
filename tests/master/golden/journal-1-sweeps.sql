-- A journal of schema 1 with an array under successive halving. It must keep loading, too.
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
(1,1001.0,'NodeRegistered','','a','{"node":"a","hostname":"a","boot_id":"boot-1","gpus":[{"gpu":"a0","index":0,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":null,"parent":null,"links":[],"mps":false},{"gpu":"a1","index":1,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":null,"parent":null,"links":[],"mps":false}],"cpus":32.0,"mem_bytes":274877906944,"checkpoint_root_id":"root-a","gpu_backend":"fake","version":"0","address":"","known":[],"share_with_foreign":false}'),
(2,1001.0,'JobSubmitted','1.0','','{"job":"1.0","spec":{"command":["x"],"workdir":"/","name":"","env":{},"gpus_min":720720,"gpus_max":720720,"gpu_mem_bytes":0,"cpus":0.0,"mem_bytes":0,"job_class":"be","priority":42,"grace_s":180.0,"time_limit_s":null,"suspend":"checkpoint","launch":"single","retries":0,"exit_zero":"suspended","signal":"SIGTERM","signal_target":"auto","weight":1.0,"group":"","max_nodes":1,"nodes":1,"work_s":null,"time_auto":false,"resume_args":[],"warm":true,"spread":false,"move_checkpoints":false,"after":[],"begin_at":0.0,"asha":{"min_steps":100,"max_steps":1600,"metric":"loss","mode":"min","eta":2}},"user":"ann","hold":false,"operation_id":"","task":{"array":"1","index":0,"size":4,"params":{},"max_concurrent":0,"max_slots":0},"again_of":null}'),
(3,1001.0,'JobSubmitted','1.1','','{"job":"1.1","spec":{"command":["x"],"workdir":"/","name":"","env":{},"gpus_min":720720,"gpus_max":720720,"gpu_mem_bytes":0,"cpus":0.0,"mem_bytes":0,"job_class":"be","priority":42,"grace_s":180.0,"time_limit_s":null,"suspend":"checkpoint","launch":"single","retries":0,"exit_zero":"suspended","signal":"SIGTERM","signal_target":"auto","weight":1.0,"group":"","max_nodes":1,"nodes":1,"work_s":null,"time_auto":false,"resume_args":[],"warm":true,"spread":false,"move_checkpoints":false,"after":[],"begin_at":0.0,"asha":{"min_steps":100,"max_steps":1600,"metric":"loss","mode":"min","eta":2}},"user":"ann","hold":false,"operation_id":"","task":{"array":"1","index":1,"size":4,"params":{},"max_concurrent":0,"max_slots":0},"again_of":null}'),
(4,1001.0,'JobSubmitted','1.2','','{"job":"1.2","spec":{"command":["x"],"workdir":"/","name":"","env":{},"gpus_min":720720,"gpus_max":720720,"gpu_mem_bytes":0,"cpus":0.0,"mem_bytes":0,"job_class":"be","priority":42,"grace_s":180.0,"time_limit_s":null,"suspend":"checkpoint","launch":"single","retries":0,"exit_zero":"suspended","signal":"SIGTERM","signal_target":"auto","weight":1.0,"group":"","max_nodes":1,"nodes":1,"work_s":null,"time_auto":false,"resume_args":[],"warm":true,"spread":false,"move_checkpoints":false,"after":[],"begin_at":0.0,"asha":{"min_steps":100,"max_steps":1600,"metric":"loss","mode":"min","eta":2}},"user":"ann","hold":false,"operation_id":"","task":{"array":"1","index":2,"size":4,"params":{},"max_concurrent":0,"max_slots":0},"again_of":null}'),
(5,1001.0,'JobSubmitted','1.3','','{"job":"1.3","spec":{"command":["x"],"workdir":"/","name":"","env":{},"gpus_min":720720,"gpus_max":720720,"gpu_mem_bytes":0,"cpus":0.0,"mem_bytes":0,"job_class":"be","priority":42,"grace_s":180.0,"time_limit_s":null,"suspend":"checkpoint","launch":"single","retries":0,"exit_zero":"suspended","signal":"SIGTERM","signal_target":"auto","weight":1.0,"group":"","max_nodes":1,"nodes":1,"work_s":null,"time_auto":false,"resume_args":[],"warm":true,"spread":false,"move_checkpoints":false,"after":[],"begin_at":0.0,"asha":{"min_steps":100,"max_steps":1600,"metric":"loss","mode":"min","eta":2}},"user":"ann","hold":false,"operation_id":"","task":{"array":"1","index":3,"size":4,"params":{},"max_concurrent":0,"max_slots":0},"again_of":null}'),
(6,1002.0,'AttemptPlaced','1.0','','{"job":"1.0","attempt":1,"allocation":{"nodes":[{"node":"a","gpus":[{"gpu":"a0","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node a","sticky":false,"reserved_s":null}'),
(7,1002.0,'AttemptPlaced','1.1','','{"job":"1.1","attempt":1,"allocation":{"nodes":[{"node":"a","gpus":[{"gpu":"a1","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node a","sticky":false,"reserved_s":null}'),
(8,1003.0,'AttemptStarted','1.0','','{"job":"1.0","attempt":1,"pid":1001,"resumed_step":null,"swaps":0,"node":"","port":0,"sharing":null}'),
(9,1004.0,'AttemptStarted','1.1','','{"job":"1.1","attempt":1,"pid":1001,"resumed_step":null,"swaps":0,"node":"","port":0,"sharing":null}'),
(10,1005.0,'RungReached','1.0','','{"job":"1.0","attempt":1,"steps":100,"value":4.0}'),
(11,1005.0,'StopRequested','1.0','','{"job":"1.0","attempt":1,"cause":"suspended","grace_s":180.0,"reason":"paused at 100 steps: loss 4 is number 1 of 1 so far, and 0 of them go on","for_job":null}'),
(12,1005.0,'JobHeld','1.0','','{"job":"1.0","by":"system","reason":"paused at 100 steps: loss 4 is number 1 of 1 so far, and 0 of them go on"}'),
(13,1006.0,'AttemptExited','1.0','','{"job":"1.0","attempt":1,"exit":{"exit_code":85,"signal":0,"lost":false,"stop_requested":true,"delivered":true,"caught":true,"acknowledged":true,"asked":false,"killed":false,"checkpointed":"unknown","checkpoint_s":0.0,"ended_at":0.0,"swap_failure":"","mps_failure":"","gpu_mem_peak_bytes":null,"out_of_memory":false,"lost_gpu":""},"progress":null,"freed":false,"node":""}'),
(14,1007.0,'AttemptFreed','1.0','','{"job":"1.0","attempt":1,"dirty_gpus":[],"node":"","dirty_reasons":[]}'),
(15,1007.0,'AttemptPlaced','1.2','','{"job":"1.2","attempt":1,"allocation":{"nodes":[{"node":"a","gpus":[{"gpu":"a0","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node a","sticky":false,"reserved_s":null}'),
(16,1008.0,'AttemptStarted','1.2','','{"job":"1.2","attempt":1,"pid":1001,"resumed_step":null,"swaps":0,"node":"","port":0,"sharing":null}'),
(17,1009.0,'RungReached','1.1','','{"job":"1.1","attempt":1,"steps":100,"value":null}'),
(18,1009.0,'StopRequested','1.1','','{"job":"1.1","attempt":1,"cause":"suspended","grace_s":180.0,"reason":"paused at 100 steps: loss no number is number 2 of 2 so far, and 1 of them go on","for_job":null}'),
(19,1009.0,'JobHeld','1.1','','{"job":"1.1","by":"system","reason":"paused at 100 steps: loss no number is number 2 of 2 so far, and 1 of them go on"}'),
(20,1009.0,'TaskPromoted','1.0','','{"job":"1.0","reason":"goes on from 100 steps: loss 4 is number 1 of 2"}'),
(21,1010.0,'AttemptExited','1.1','','{"job":"1.1","attempt":1,"exit":{"exit_code":85,"signal":0,"lost":false,"stop_requested":true,"delivered":true,"caught":true,"acknowledged":true,"asked":false,"killed":false,"checkpointed":"unknown","checkpoint_s":0.0,"ended_at":0.0,"swap_failure":"","mps_failure":"","gpu_mem_peak_bytes":null,"out_of_memory":false,"lost_gpu":""},"progress":null,"freed":false,"node":""}'),
(22,1011.0,'AttemptFreed','1.1','','{"job":"1.1","attempt":1,"dirty_gpus":[],"node":"","dirty_reasons":[]}'),
(23,1011.0,'AttemptPlaced','1.0','','{"job":"1.0","attempt":2,"allocation":{"nodes":[{"node":"a","gpus":[{"gpu":"a1","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node a","sticky":false,"reserved_s":null}'),
(24,1012.0,'AttemptStarted','1.0','','{"job":"1.0","attempt":2,"pid":1002,"resumed_step":null,"swaps":0,"node":"","port":0,"sharing":null}'),
(25,1013.0,'WorkResumed','1.0','','{"job":"1.0","attempt":2,"step":200}'),
(26,1013.0,'RungReached','1.0','','{"job":"1.0","attempt":2,"steps":200,"value":4.0}'),
(27,1013.0,'StopRequested','1.0','','{"job":"1.0","attempt":2,"cause":"suspended","grace_s":180.0,"reason":"paused at 200 steps: loss 4 is number 1 of 1 so far, and 0 of them go on","for_job":null}'),
(28,1013.0,'JobHeld','1.0','','{"job":"1.0","by":"system","reason":"paused at 200 steps: loss 4 is number 1 of 1 so far, and 0 of them go on"}'),
(29,1014.0,'AttemptExited','1.0','','{"job":"1.0","attempt":2,"exit":{"exit_code":85,"signal":0,"lost":false,"stop_requested":true,"delivered":true,"caught":true,"acknowledged":true,"asked":false,"killed":false,"checkpointed":"unknown","checkpoint_s":0.0,"ended_at":0.0,"swap_failure":"","mps_failure":"","gpu_mem_peak_bytes":null,"out_of_memory":false,"lost_gpu":""},"progress":null,"freed":false,"node":""}'),
(30,1015.0,'AttemptFreed','1.0','','{"job":"1.0","attempt":2,"dirty_gpus":[],"node":"","dirty_reasons":[]}'),
(31,1015.0,'AttemptPlaced','1.3','','{"job":"1.3","attempt":1,"allocation":{"nodes":[{"node":"a","gpus":[{"gpu":"a1","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node a","sticky":false,"reserved_s":null}'),
(32,1016.0,'AttemptStarted','1.3','','{"job":"1.3","attempt":1,"pid":1001,"resumed_step":null,"swaps":0,"node":"","port":0,"sharing":null}'),
(33,1017.0,'RungReached','1.2','','{"job":"1.2","attempt":1,"steps":100,"value":1.0}'),
(34,1017.0,'TaskPromoted','1.2','','{"job":"1.2","reason":"goes on from 100 steps: loss 1 is number 1 of 3"}'),
(35,1017.0,'TaskStopped','1.1','','{"job":"1.1","reason":"stopped early at 100 steps: loss no number is number 3 of 3"}'),
(36,1018.0,'RungReached','1.2','','{"job":"1.2","attempt":1,"steps":200,"value":1.0}'),
(37,1018.0,'TaskPromoted','1.2','','{"job":"1.2","reason":"goes on from 200 steps: loss 1 is number 1 of 2"}'),
(38,1018.0,'TaskStopped','1.0','','{"job":"1.0","reason":"stopped early at 200 steps: loss 4 is number 2 of 2"}'),
(39,1019.0,'RungReached','1.3','','{"job":"1.3","attempt":1,"steps":100,"value":2.0}'),
(40,1019.0,'TaskPromoted','1.3','','{"job":"1.3","reason":"goes on from 100 steps: loss 2 is number 2 of 4"}');
PRAGMA user_version = 1;
COMMIT;
