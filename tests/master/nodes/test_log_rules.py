"""What is to be done with a job's output goes to the nodes, and what they find comes back."""

from ebbtide_protos.v1 import agent_pb2, job_pb2

from tests.master.world import FREED, RUNNING, a_master

NO_RETRY, EXCLUDE_GPU = job_pb2.LOG_ACTION_NO_RETRY, job_pb2.LOG_ACTION_EXCLUDE_GPU


def match(action, line):
    return job_pb2.LogMatch(pattern="p", action=action, line=line)


async def test_a_node_gets_the_jobs_rules_and_the_usual_ones(tmp_path):
    async with a_master(tmp_path) as master:
        agent = await master.agent()
        own = job_pb2.LogRule(pattern="NCCL", action=job_pb2.LOG_ACTION_NOTIFY)
        await master.submit(log_rules=[own])
        launch = await agent.receive("launch")
        assert list(launch.spec.log_rules) == [own]
        assert [rule.action for rule in launch.log_rules] == [NO_RETRY, EXCLUDE_GPU]


async def test_a_failure_with_such_a_line_is_final_and_the_line_is_in_its_reason(tmp_path):
    async with a_master(tmp_path) as master:
        agent = await master.agent()
        job = await master.running(agent, retries=2)
        found = [match(NO_RETRY, "CUDA out of\x1b memory")]
        failed = agent_pb2.ExitRecord(exit_code=1, ended_at=1001.0)
        await agent.report(job, 1, FREED, exit=failed, log_matches=found)
        shown = await master.becomes(job, "FAILED")
        assert shown.reason == "failed with exit code 1: 'CUDA out of  memory', not to be tried again"
        assert (await master.kinds())[-3:] == ["LogMatched", "AttemptExited", "AttemptFreed"]


async def test_a_job_leaves_the_gpu_that_its_log_complains_of(tmp_path):
    async with a_master(tmp_path) as master:
        agent = await master.agent()
        job = await master.running(agent)
        found = [match(EXCLUDE_GPU, "uncorrectable ECC error")]
        await agent.report(job, 1, RUNNING, log_matches=found)
        failed = agent_pb2.ExitRecord(exit_code=1, ended_at=1001.0)
        await agent.report(job, 1, FREED, exit=failed, log_matches=found)
        launch = await agent.receive("launch")
        assert [gpu.uuid for gpu in launch.gpus] == ["n1-1"]


async def test_a_node_is_told_which_file_it_appends_to(tmp_path):
    async with a_master(tmp_path) as master:
        agent = await master.agent()
        job = await master.submit(output="%x-%j-%N.out", name="train")
        assert (await agent.receive("launch")).spec.output == f"train-{job}-n1.out"
